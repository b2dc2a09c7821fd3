#!/bin/sh
# The engine in a pod, its executors in pods that Spark starts; the pod's service account may create them.
# A headless service named sales-driver leads to this pod: executors call the driver by that name.
exec spark-submit \
  --master k8s://https://kubernetes.default.svc \
  --deploy-mode client \
  --name clew-sales \
  --conf spark.executor.instances=8 \
  --conf spark.executor.cores=2 \
  --conf spark.executor.memory=8g \
  --conf spark.scheduler.mode=FAIR \
  --conf spark.driver.host=sales-driver \
  --conf spark.driver.bindAddress=0.0.0.0 \
  --conf spark.driver.port=7078 \
  --conf spark.driver.blockManager.port=7079 \
  --conf spark.kubernetes.namespace="$NAMESPACE" \
  --conf spark.kubernetes.container.image=registry.example.com/clew-executor:0.1.0 \
  --conf spark.kubernetes.executor.secretKeyRef.SHOP=sales-databases:shop \
  --conf spark.executorEnv.ORDERS="$ORDERS" \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.shared.options.claimName=sales-shared \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.shared.mount.path=/shared \
  engine.py engine /pipeline/sales.py \
  --bodies /shared/bodies \
  --listen 0.0.0.0:7077 --token-file /secrets/token/token \
  --tls-cert /secrets/tls/tls.crt --tls-key /secrets/tls/tls.key
