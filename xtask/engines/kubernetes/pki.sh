# Keys and certificates of a cluster for a day, and the settings by which its parts find each other. Variables: ADDRESS.
set -e
{
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca
certificate() { # name, subject, names
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
  echo "${3:-basicConstraints=CA:FALSE}" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out "$1.crt" -extfile "$1.ext"
}
certificate apiserver /CN=kube-apiserver \
  "subjectAltName=IP:127.0.0.1,IP:$ADDRESS,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
certificate admin /O=system:masters/CN=admin
certificate controllers /CN=system:kube-controller-manager
certificate scheduler /CN=system:kube-scheduler
certificate kubelet0 /O=system:nodes/CN=system:node:node0 "subjectAltName=IP:$ADDRESS,DNS:node0"
certificate kubelet1 /O=system:nodes/CN=system:node:node1 "subjectAltName=IP:${ADDRESS%.*}.2,DNS:node1"
certificate to-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client
openssl genrsa -out accounts.key 2048
openssl rsa -in accounts.key -pubout -out accounts.pub
} 2> openssl.log
settings() { # name, user, server
  cat > "$1.conf" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$3:6443", certificate-authority: $PWD/ca.crt}}]
users: [{name: u, user: {$2}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
CONFIG
}
for user in admin controllers scheduler kubelet0 kubelet1; do
  settings $user "client-certificate: $PWD/$user.crt, client-key: $PWD/$user.key" "$ADDRESS"
done
# Users who are to be refused.
settings stranger "token: wrong" "$ADDRESS"
settings lost "token: wrong" "${ADDRESS%.*}.99"
