//! Kubernetes: etcd, API server, controllers, scheduler and DNS in a network namespace, and two nodes with kubelet,
//! containerd and runc, the second in a namespace of its own that can be cut off. What Debian does not have is built
//! from Go's module proxy (`build`). Nothing of the machine's network, mounts or settings is touched.

mod build;
mod image;

use super::{Engine, Place, over, packages, words};
use crate::engines::daemon::Daemon;
use crate::engines::install;
use crate::process::{output, root, run, server_binary, target_dir};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const ENGINE: Engine = Engine {
    name: "kubernetes",
    install: |home| {
        let root = packages(home);
        let wanted = [
            "etcd-server",
            "containerd",
            "runc",
            "containernetworking-plugins",
        ];
        install::debian_all(&wanted, &root, "usr/bin/etcd")?;
        build::all(home)
    },
    start: |home, data| Ok(Box::new(Cluster::start(home, data)?)),
};

/// Namespaces and control groups are named so; nobody else's are touched.
const PREFIX: &str = "downpour-k8s";
/// Of the nodes' network, which exists in their namespaces only.
const NET: &str = "10.231.78";
/// How long a task goes on when its node is cut off.
const LEASE: &str = "10s";
/// For two nodes that share a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Where the image of a task comes from: from nowhere, it is put into each node.
const IMAGE: &str = "downpour.local/task:1";
const PAUSE: &str = "downpour.local/pause:1";

struct Cluster {
    home: PathBuf,
    data: PathBuf,
    /// The nodes end first, the store last.
    daemons: Vec<Daemon>,
    _net: Net,
}

/// Namespaces and control groups, removed at the end.
struct Net;

impl Drop for Net {
    fn drop(&mut self) {
        remove_namespaces();
    }
}

fn remove_namespaces() {
    for n in 0..2 {
        let name = format!("{PREFIX}-{n}");
        let _ = Command::new("ip").args(["netns", "del", &name]).output();
        let kinds = std::fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        for group in kinds
            .map(|kind| kind.path().join(&name))
            .filter(|group| group.is_dir())
        {
            let mut remove = Command::new("find");
            remove
                .arg(&group)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
            let _ = remove.output();
        }
    }
}

fn ip(network: Option<&str>, line: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(network) = network {
        command.args(["-n", network]);
    }
    run(command.args(line.split(' ')))
}

impl Net {
    fn start() -> Result<Net> {
        // What a run that was killed has left.
        remove_namespaces();
        let (first, second) = (format!("{PREFIX}-0"), format!("{PREFIX}-1"));
        let net = Net;
        for name in [&first, &second] {
            ip(None, &format!("netns add {name}"))?;
            ip(Some(name), "link set lo up")?;
        }
        ip(Some(&first), "link add hub type bridge")?;
        ip(Some(&first), &format!("addr add {NET}.1/24 dev hub"))?;
        ip(Some(&first), "link set hub up")?;
        ip(
            Some(&first),
            &format!("link add up1 type veth peer name eth0 netns {second}"),
        )?;
        ip(Some(&first), "link set up1 master hub")?;
        ip(Some(&first), "link set up1 up")?;
        ip(Some(&second), &format!("addr add {NET}.2/24 dev eth0"))?;
        ip(Some(&second), "link set eth0 up")?;
        // Pods of each node are reached through it. The server wants a way to everywhere.
        ip(Some(&first), "route add default dev hub")?;
        ip(
            Some(&first),
            &format!("route add {}.0/24 via {NET}.2", pods(1)),
        )?;
        ip(Some(&second), &format!("route add default via {NET}.1"))?;
        Ok(net)
    }
}

/// The network of a node's pods.
fn pods(node: usize) -> String {
    format!("10.231.{}", 80 + node)
}

impl Cluster {
    fn start(home: &Path, data: &Path) -> Result<Cluster> {
        let pki = data.join("pki");
        std::fs::create_dir_all(&pki).context("cannot make a folder for keys")?;
        let script = root().join("xtask/engines/kubernetes/pki.sh");
        run(Command::new("sh")
            .arg(script)
            .current_dir(&pki)
            .env("ADDRESS", format!("{NET}.1")))?;
        image::write(
            &data.join("task.tar"),
            IMAGE,
            &server_binary(),
            "bin/downpour",
        )?;
        image::write(
            &data.join("pause.tar"),
            PAUSE,
            Path::new("/bin/sleep"),
            "bin/pause",
        )?;
        let mut cluster = Cluster {
            home: home.to_owned(),
            data: data.to_owned(),
            daemons: Vec::new(),
            _net: Net::start()?,
        };
        cluster.start_control()?;
        for n in 0..2 {
            cluster.start_node(n)?;
        }
        cluster.await_nodes()?;
        Ok(cluster)
    }

    fn start_control(&mut self) -> Result<()> {
        let (data, home) = (self.data.display().to_string(), self.home.clone());
        let pki = |name: &str| format!("{data}/pki/{name}");
        let kube = home.join("bin/kube");
        let own =
            |program: &Path| over(&packages(&home), Some(&format!("{PREFIX}-0")), "", program);
        let mut etcd = own(Path::new("/usr/bin/etcd"));
        etcd.args([
            "--name=k",
            "--unsafe-no-fsync",
            &format!("--data-dir={data}/etcd"),
        ]);
        self.daemon("etcd", &etcd, |c| {
            c.says(
                Path::new("curl"),
                &["-s", "http://127.0.0.1:2379/health"],
                "\"true\"",
            )
        })?;
        let mut server = own(&kube);
        server.args([
            "apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            &format!("--bind-address={NET}.1"),
            &format!("--advertise-address={NET}.1"),
            "--secure-port=6443",
            &format!("--tls-cert-file={}", pki("apiserver.crt")),
            &format!("--tls-private-key-file={}", pki("apiserver.key")),
            &format!("--client-ca-file={}", pki("ca.crt")),
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-account-signing-key-file={}", pki("accounts.key")),
            &format!("--service-account-key-file={}", pki("accounts.pub")),
            &format!("--kubelet-client-certificate={}", pki("to-kubelet.crt")),
            &format!("--kubelet-client-key={}", pki("to-kubelet.key")),
            &format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
        ]);
        self.daemon("apiserver", &server, |c| {
            c.kubectl_says(&["get", "--raw", "/readyz"], "ok")
        })?;
        let mut controllers = own(&kube);
        let config = pki("controllers.conf");
        controllers.args([
            "controller-manager",
            &format!("--kubeconfig={config}"),
            &format!("--authentication-kubeconfig={config}"),
            &format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1",
            &format!("--service-account-private-key-file={}", pki("accounts.key")),
            &format!("--root-ca-file={}", pki("ca.crt")),
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            "--node-monitor-grace-period=20s",
        ]);
        self.daemon("controllers", &controllers, |c| {
            c.kubectl_says(
                &["get", "serviceaccount", "default", "--output=name"],
                "default",
            )
        })?;
        let mut scheduler = own(&kube);
        let config = pki("scheduler.conf");
        scheduler.args([
            "scheduler",
            &format!("--kubeconfig={config}"),
            &format!("--authentication-kubeconfig={config}"),
            &format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ]);
        self.daemon("scheduler", &scheduler, |_| true)?;
        let zones = format!(
            ".:53 {{\n  errors\n  kubernetes cluster.local {{\n    kubeconfig {} x\n    ttl 1\n  }}\n}}\n",
            pki("admin.conf")
        );
        std::fs::write(self.data.join("Corefile"), zones).context("cannot write DNS's settings")?;
        let mut dns = own(&home.join("bin/coredns"));
        dns.args(["-conf", &format!("{data}/Corefile")]);
        self.daemon("dns", &dns, |_| true)
    }

    fn daemon(
        &mut self,
        name: &'static str,
        command: &Command,
        serves: impl Fn(&Cluster) -> bool,
    ) -> Result<()> {
        let mut daemon = Daemon::start(name, command, &self.data)?;
        daemon.wait_until(|| serves(self))?;
        self.daemons.insert(0, daemon);
        Ok(())
    }

    fn start_node(&mut self, n: usize) -> Result<()> {
        let folder = self.data.join(format!("node{n}"));
        std::fs::create_dir_all(folder.join("cni")).context("cannot make a node's folder")?;
        let shown = folder.display().to_string();
        let plugins = "/usr/lib/cni";
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("resolv.conf", format!("nameserver {NET}.1\n"))?;
        write(
            "cni/10-bridge.conflist",
            format!(
                r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"bridge","bridge":"pods","isGateway":true,"ipMasq":false,
"hairpinMode":true,"ipam":{{"type":"host-local","ranges":[[{{"subnet":"{}.0/24"}}]],"routes":[{{"dst":"0.0.0.0/0"}}],
"dataDir":"{shown}/ipam"}}}}]}}"#,
                pods(n)
            ),
        )?;
        write("containerd.toml", containerd(&shown, plugins))?;
        write(
            "kubelet.yaml",
            kubelet(&shown, n, &self.data.join("pki").display().to_string()),
        )?;
        let script = root().join("xtask/engines/kubernetes/node.sh");
        let network = format!("{PREFIX}-{n}");
        let mut node = over(
            &packages(&self.home),
            Some(&network),
            "",
            Path::new("unshare"),
        );
        node.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            "sh",
        ]);
        node.arg(script);
        node.env("FOLDER", &shown)
            .env("NUMBER", n.to_string())
            .env("ADDRESS", format!("{NET}.{}", n + 1))
            .env("KUBE", self.home.join("bin/kube"))
            .env("PKI", self.data.join("pki"))
            .env("GROUP", &network);
        let name = ["node0", "node1"][n];
        let node = Daemon::start(name, &node, &self.data)?;
        self.daemons.insert(0, node);
        Ok(())
    }

    /// Waits until both nodes take pods.
    fn await_nodes(&mut self) -> Result<()> {
        let wanted = [
            "get",
            "nodes",
            "--no-headers",
            "--output=custom-columns=R:.status.conditions[?(@.type==\"Ready\")].status",
        ];
        let begin = Instant::now();
        while self
            .kubectl(&wanted)
            .map_or(true, |said| said.trim() != "True\nTrue")
        {
            for node in self.daemons.iter_mut().take(2) {
                node.check()?;
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "the nodes are not ready after {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.user(Path::new("kubectl"));
        let said = output(command.args(args))?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn kubectl_says(&self, args: &[&str], want: &str) -> bool {
        self.says(Path::new("kubectl"), args, want)
    }

    fn says(&self, program: &Path, args: &[&str], want: &str) -> bool {
        let said = self.user(program).args(args).output();
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(want))
    }

    fn link(&self, how: &str) -> Result<()> {
        ip(Some(&format!("{PREFIX}-0")), &format!("link set up1 {how}"))
    }

    /// Processes of a run's tasks; all runs' if none is named.
    fn tasks(&self, run: &str) -> Vec<u32> {
        let own = format!("DOWNPOUR_DIR={}", self.data.join(run).display());
        processes(|process| {
            environment(process)
                .iter()
                .any(|line| line.starts_with(&own))
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nothing that the nodes' processes would say at their end is of use.
        for daemon in self.daemons.iter_mut().take(2) {
            daemon.kill();
        }
    }
}

fn containerd(folder: &str, plugins: &str) -> String {
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "/run/containerd-state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Root may lack the right to lower the score.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#
    )
}

fn kubelet(folder: &str, n: usize, pki: &str) -> String {
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {NET}.{}
containerRuntimeEndpoint: unix://{folder}/c.sock
cgroupDriver: cgroupfs
failCgroupV1: false
cgroupRoot: /{PREFIX}-{n}
oomScoreAdj: 0
failSwapOn: false
makeIPTablesUtilChains: false
protectKernelDefaults: true
clusterDNS: [{NET}.1]
clusterDomain: cluster.local
resolvConf: {folder}/resolv.conf
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {pki}/ca.crt}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {pki}/kubelet{n}.crt
tlsPrivateKeyFile: {pki}/kubelet{n}.key
podLogsDir: {folder}/logs
volumePluginDir: {folder}/plugins
evictionHard: {{memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
"#,
        n + 1
    )
}

fn processes(is_meant: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| is_meant(*process)).collect()
}

/// What a process was started with.
fn environment(process: u32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let lines = text.split(|byte| *byte == 0);
    lines
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect()
}

/// Which node a process is on, by its control group.
fn is_on(process: u32, node: usize) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    groups.contains(&format!("/{PREFIX}-{node}/"))
}

impl Place for Cluster {
    fn user(&self, program: &Path) -> Command {
        let mut command = over(
            &packages(&self.home),
            Some(&format!("{PREFIX}-0")),
            "",
            program,
        );
        command.env("KUBECONFIG", self.data.join("pki/admin.conf"));
        command
    }

    fn flags(&self, _is_patient: bool) -> Vec<String> {
        let mut flags = words(&["--on=kubernetes", "--lease", LEASE, "--image", IMAGE]);
        let data = self.data.display().to_string();
        flags.push(format!("--volume={data}:{data}"));
        let mut read = vec!["/usr".to_owned(), "/lib".to_owned(), "/lib64".to_owned()];
        read.push(root().display().to_string());
        // Where the interpreter of the environment with TensorFlow really lies.
        let python = crate::venv::ensure().and_then(|p| Ok(p.canonicalize()?));
        let prefix = python
            .ok()
            .and_then(|p| Some(p.parent()?.parent()?.to_owned()));
        if let Some(prefix) = prefix.filter(|p| !p.starts_with("/usr")) {
            read.push(prefix.display().to_string());
        }
        let target = target_dir();
        if !target.starts_with(root()) {
            read.push(target.display().to_string());
        }
        flags.extend(
            read.iter()
                .map(|folder| format!("--volume={folder}:{folder}:ro")),
        );
        flags
    }

    /// Cuts off the second node. Its pods run on until the lease is over.
    fn lose_host(&mut self) -> Result<bool> {
        self.link("down").map(|()| true)
    }

    /// The fence: nothing trains on the node any more when others take its tasks' places.
    fn check_lost(&self, run: &str) -> Result<()> {
        let left: Vec<u32> = self
            .tasks(run)
            .into_iter()
            .filter(|p| is_on(*p, 1))
            .collect();
        ensure!(
            left.is_empty(),
            "processes {left:?} still train on the node that is cut off"
        );
        Ok(())
    }

    fn heal(&mut self) -> Result<()> {
        self.link("up")?;
        self.await_nodes()
    }

    fn adopts(&self) -> bool {
        true
    }

    fn steps(&self) -> u32 {
        // Kubernetes starts a pod again after ten seconds.
        80_000
    }

    fn process(&self, run: &str, task: &str) -> Option<u32> {
        let (job, index) = task.split_once(':')?;
        let is_meant = |process: &u32| {
            let environment = environment(*process);
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let has_index = environment.contains(&format!("JOB_COMPLETION_INDEX={index}"));
            let serves = line.contains(&format!(" serve --job {job} --task {index} "));
            let named = format!("\"index\":{index},\"type\":\"{job}\"");
            has_index && (serves || environment.iter().any(|line| line.contains(&named)))
        };
        self.tasks(run).into_iter().find(is_meant)
    }

    fn left(&self) -> Result<String> {
        let kinds = "pods,jobs,services,secrets";
        let ours = self.kubectl(&["get", kinds, "--selector=downpour/job", "--output=name"])?;
        let tasks = self.tasks("");
        Ok(match tasks.is_empty() {
            true => ours,
            false => format!("{ours}processes {tasks:?}"),
        })
    }

    fn refusals(&self) -> Vec<(Vec<String>, &'static str)> {
        let pki = |name: &str| format!("--option=--kubeconfig={}/pki/{name}", self.data.display());
        let base =
            format!("on = 'kubernetes'\ncommand = ['downpour']\n[kubernetes]\nimage = '{IMAGE}'\n");
        let write = |name: &str, text: String| {
            let path = self.data.join(name);
            // One that cannot be written is refused with other words than are expected.
            let _ = std::fs::write(&path, text);
            path.display().to_string()
        };
        let file = |name: &str, text: String| vec![write(name, text)];
        let with = |more: &[&str]| {
            let mut all = words(&["--on=kubernetes", "--workers=1", "--restarts=0"]);
            all.extend(words(more));
            all
        };
        let image = format!("--image={IMAGE}");
        let one = "[tasks.worker]\ncount = 1\n";
        vec![
            (with(&["--", "true"]), "needs --image"),
            (
                file(
                    "huge.toml",
                    format!("{base}{one}resources = {{ cpus = 640 }}\n"),
                ),
                "no node has room for worker: it asks for cpu 640",
            ),
            (
                file(
                    "gpu.toml",
                    format!("{base}{one}resources = {{ gpus = 1 }}\n"),
                ),
                "it asks for nvidia.com/gpu 1",
            ),
            (
                file(
                    "gone.toml",
                    format!("{base}pull = 'Never'\n{one}").replace("task:1", "none:1"),
                ),
                "is not present with pull policy of Never",
            ),
            (
                file(
                    "tfjob.yaml",
                    "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: x}\nspec: {}\n"
                        .to_owned(),
                ),
                "a TFJob needs spec.tfReplicaSpecs",
            ),
            (
                with(&[&image, "--", "/no/such"]),
                "no such file or directory",
            ),
            (
                with(&[&image, "--namespace=nowhere", "--", "true"]),
                "namespaces \"nowhere\" not found",
            ),
            (
                with(&[&image, &pki("stranger.conf"), "--", "true"]),
                "credentials are not accepted",
            ),
            (
                with(&[&image, &pki("lost.conf"), "--", "true"]),
                "the Kubernetes cluster cannot be used",
            ),
        ]
    }
}
