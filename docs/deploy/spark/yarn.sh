#!/bin/sh
# The engine on YARN, in client mode: the driver, which is the engine, stays here, where groups find it.
# The environment with Clew in it travels as an archive, as venv-pack or conda-pack makes it.
export PYSPARK_PYTHON=./clew/bin/python
export PYSPARK_DRIVER_PYTHON=/opt/clew/bin/python
exec spark-submit \
  --master yarn \
  --deploy-mode client \
  --name "clew sales" \
  --queue pipelines \
  --num-executors 8 \
  --executor-cores 2 \
  --executor-memory 8g \
  --archives clew.tar.gz#clew \
  --conf spark.scheduler.mode=FAIR \
  --conf spark.executorEnv.SHOP="$SHOP" \
  --conf spark.executorEnv.ORDERS="$ORDERS" \
  engine.py engine sales.py \
  --bodies /shared/clew/sales \
  --listen 0.0.0.0:7070 --token-file /etc/clew/sales.token \
  --tls-cert /etc/clew/sales.crt --tls-key /etc/clew/sales.key
