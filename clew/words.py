"""How things are said to people."""


def counted(number: int, what: str) -> str:
    """Say how many of something there are: `1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
