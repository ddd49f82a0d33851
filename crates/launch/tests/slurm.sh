#!/bin/sh
#SBATCH --job-name=mnist
#SBATCH --nodes=3
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --output=/run/mnist-1/slurm.log
#SBATCH --partition=p

# A launcher that was killed is started again; programs go on from their last checkpoint.
for attempt in 1 2 3 4 5; do
  /opt/downpour run --on slurm /run/mnist-1/job.json &
  launcher=$!
  trap 'kill -TERM $launcher' TERM INT
  wait $launcher
  code=$?
  while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done
  [ $code = 137 ] || break
done
exit $code
