#!/bin/sh
# In place of `downpour serve --job JOB --task N …`: says that it listens, and stays.
echo "/job:$3/task:$5 listens on grpc://here"
exec sleep 1000
