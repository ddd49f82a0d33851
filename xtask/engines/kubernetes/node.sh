# One node of the cluster: Debian's containerd and runc, and a kubelet, in process, mount and network namespaces of their own. All
# of it ends with this shell, which is the first process of its namespace. Variables: FOLDER NUMBER ADDRESS KUBE PKI GROUP.
set -e
cd "$FOLDER"
# Pods are mounted below here, and must be seen by what runs in them.
mount --make-rshared /
for place in /run /var/log; do mount -t tmpfs tmpfs $place; done
# The kubelet wants six settings of the kernel; it is shown them, the machine's stay as they are.
mkdir -p sysctl
for wanted in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=sysctl/$(echo "${wanted%=*}" | tr / _)
  echo "${wanted#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${wanted%=*}"
done
# One tree of control groups for each kubelet, or they would clean up each other's pods.
for kind in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
  [ -d /sys/fs/cgroup/$kind ] && mkdir -p "/sys/fs/cgroup/$kind/$GROUP"
done
for file in cpuset.cpus cpuset.mems; do
  [ -d /sys/fs/cgroup/cpuset ] && cat /sys/fs/cgroup/cpuset/$file > "/sys/fs/cgroup/cpuset/$GROUP/$file"
done
socket=$FOLDER/c.sock
containerd --config containerd.toml > containerd.log 2>&1 &
tries=0
until ctr --address "$socket" version > /dev/null 2>&1; do
  tries=$((tries + 1)); [ $tries -lt 300 ]; sleep 0.2
done
for image in pause task; do
  ctr --address "$socket" --namespace k8s.io images import "../$image.tar"
done
"$KUBE" kubelet --config=kubelet.yaml --kubeconfig="$PKI/kubelet$NUMBER.conf" --hostname-override="node$NUMBER" \
  --node-ip="$ADDRESS" --root-dir="$FOLDER/kubelet" --cert-dir="$FOLDER/certs" &
wait $!
