"""What spark-submit is given: the command line of Clew, in the session that spark-submit makes."""

from clew.app.main import app

app()
