#!/bin/sh
# The engine on a standalone cluster. It runs here; groups reach it here.
# Executors have Clew installed under the same path, and see /shared; what the pipeline file asks for they get by executorEnv.
exec spark-submit \
  --master spark://master.example.com:7077 \
  --name "clew sales" \
  --total-executor-cores 16 \
  --executor-memory 8g \
  --conf spark.scheduler.mode=FAIR \
  --conf spark.pyspark.python=/opt/clew/bin/python \
  --conf spark.executorEnv.SHOP="$SHOP" \
  --conf spark.executorEnv.ORDERS="$ORDERS" \
  engine.py engine sales.py \
  --bodies /shared/clew/sales \
  --listen 0.0.0.0:7070 --token-file /etc/clew/sales.token \
  --tls-cert /etc/clew/sales.crt --tls-key /etc/clew/sales.key
