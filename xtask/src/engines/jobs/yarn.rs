//! YARN and HDFS of Hadoop, by Maven: a NameNode, a DataNode, a ResourceManager and two NodeManagers, on ports of the loopback of their own.

use super::slurm::with_environment;
use super::{Engine, Place, words};
use crate::engines::daemon::{Daemon, PATIENCE, free_ports, get};
use crate::engines::hdfs::{OPENS, xml};
use crate::engines::install;
use crate::process::run;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ARTIFACTS: &[&str] = &[
    "org.apache.hadoop:hadoop-common:3.4.2",
    "org.apache.hadoop:hadoop-hdfs:3.4.2",
    "org.apache.hadoop:hadoop-hdfs-client:3.4.2",
    "org.apache.hadoop:hadoop-yarn-server-resourcemanager:3.4.2",
    "org.apache.hadoop:hadoop-yarn-server-nodemanager:3.4.2",
    "org.apache.hadoop:hadoop-yarn-client:3.4.2",
    // Without it the ResourceManager's web does not start.
    "org.apache.hadoop:hadoop-yarn-server-timelineservice:3.4.2",
];

pub(super) const ENGINE: Engine = Engine {
    name: "yarn",
    install: |home| install::maven(ARTIFACTS, home).map(|_| ()),
    start: |home, data| Ok(Box::new(Cluster::start(home, data)?)),
};

const NODES: [&str; 2] = ["nodemanager-1", "nodemanager-2"];
/// Between two looks at what cannot be waited for.
const POLL: Duration = Duration::from_millis(100);

struct Cluster {
    home: PathBuf,
    data: PathBuf,
    /// The ResourceManager's web and the NameNode's.
    web: u16,
    files: u16,
    /// The port of each NodeManager, which containers have in their environment.
    nodes: [u16; 2],
    running: [Option<Daemon>; 2],
    _daemons: Vec<Daemon>,
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

impl Cluster {
    fn start(home: &Path, data: &Path) -> Result<Cluster> {
        let hdfs: [u16; 5] = free_ports()?;
        let rm: [u16; 5] = free_ports()?;
        let nodes: [u16; 8] = free_ports()?;
        let shown = data.display();
        write_conf(&data.join("conf"), data, hdfs, rm, &nodes[..4])?;
        write_conf(&data.join("conf-1"), data, hdfs, rm, &nodes[..4])?;
        write_conf(&data.join("conf-2"), data, hdfs, rm, &nodes[4..])?;
        let mut cluster = Cluster {
            home: home.to_owned(),
            data: data.to_owned(),
            web: rm[4],
            files: hdfs[1],
            nodes: [nodes[0], nodes[4]],
            running: [None, None],
            _daemons: Vec::new(),
        };
        let mut format = cluster.java("conf", "hdfs.server.namenode.NameNode");
        format.args(["-format", "-nonInteractive"]);
        let log = std::fs::File::create(data.join("format.log")).context("its log")?;
        run(format.stderr(log)).with_context(|| format!("see {shown}/format.log"))?;
        for (name, class) in [
            ("namenode", "hdfs.server.namenode.NameNode"),
            ("datanode", "hdfs.server.datanode.DataNode"),
            (
                "resourcemanager",
                "yarn.server.resourcemanager.ResourceManager",
            ),
        ] {
            let daemon = Daemon::start(name, &cluster.java("conf", class), data)?;
            // The last that was started ends first.
            cluster._daemons.insert(0, daemon);
        }
        let query = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState";
        let files = cluster.files;
        let is_live = || get(files, query).is_some_and(|a| a.contains("\"NumLiveDataNodes\" : 1"));
        let data_node = cluster._daemons.get_mut(1).context("no DataNode")?;
        data_node.wait_until(is_live)?;
        cluster.heal()?;
        Ok(cluster)
    }

    fn java(&self, conf: &str, class: &str) -> Command {
        let mut command = Command::new("java");
        for package in OPENS {
            command.arg(format!("--add-opens=java.base/java.{package}=ALL-UNNAMED"));
        }
        let conf = self.data.join(conf);
        let path = format!("{}:{}/lib/*", conf.display(), self.home.display());
        command
            .args(["-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Djava.net.preferIPv4Stack=true")
            .arg(format!(
                "-Dhadoop.log.dir={}",
                self.data.join("logs").display()
            ))
            .args(["-cp", &path])
            .arg(format!("org.apache.hadoop.{class}"))
            .env("HADOOP_CONF_DIR", &conf);
        command
    }

    fn ask(&self, path: &str) -> serde_json::Value {
        let answer = get(self.web, path).unwrap_or_default();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_default()
    }

    /// The node on which no ApplicationMaster runs.
    fn other_node(&self) -> usize {
        let mine = |node: usize| {
            let found = with_environment(&[&format!("NM_PORT={}", self.nodes[node])]);
            found.into_iter().any(|process| {
                let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&line).contains("yarn-master")
            })
        };
        usize::from(mine(0))
    }
}

fn write_conf(conf: &Path, data: &Path, hdfs: [u16; 5], rm: [u16; 5], node: &[u16]) -> Result<()> {
    // The jar lacks the pages that both servers look for.
    for app in ["hdfs", "datanode"] {
        let folder = conf.join("webapps").join(app).join("WEB-INF");
        std::fs::create_dir_all(&folder).context("cannot make a folder of its pages")?;
        std::fs::write(folder.join("web.xml"), "<web-app></web-app>").context("web.xml")?;
    }
    let log = "log4j.rootLogger=INFO,console\n\
        log4j.appender.console=org.apache.log4j.ConsoleAppender\n\
        log4j.appender.console.target=System.err\n\
        log4j.appender.console.layout=org.apache.log4j.PatternLayout\n\
        log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n\n";
    std::fs::write(conf.join("log4j.properties"), log).context("log4j.properties")?;
    let folder = |name: &str| data.join(name).display().to_string();
    let own = |text: &str| text.to_owned();
    let core = [
        ("fs.defaultFS", format!("hdfs://{}", local(hdfs[0]))),
        ("hadoop.tmp.dir", folder("tmp")),
        ("hadoop.http.staticuser.user", own("root")),
    ];
    let site = [
        ("dfs.replication", own("1")),
        ("dfs.namenode.name.dir", format!("file://{}", folder("nn"))),
        ("dfs.datanode.data.dir", format!("file://{}", folder("dn"))),
        ("dfs.namenode.http-address", local(hdfs[1])),
        ("dfs.namenode.rpc-bind-host", own("127.0.0.1")),
        ("dfs.datanode.address", local(hdfs[2])),
        ("dfs.datanode.http.address", local(hdfs[3])),
        ("dfs.datanode.ipc.address", local(hdfs[4])),
        ("dfs.datanode.hostname", own("127.0.0.1")),
        (
            "dfs.namenode.datanode.registration.ip-hostname-check",
            own("false"),
        ),
        ("dfs.namenode.safemode.extension", own("0")),
    ];
    let name = format!("nm-{}", node[0]);
    let yarn = [
        ("yarn.resourcemanager.hostname", own("127.0.0.1")),
        ("yarn.resourcemanager.bind-host", own("127.0.0.1")),
        ("yarn.resourcemanager.address", local(rm[0])),
        ("yarn.resourcemanager.scheduler.address", local(rm[1])),
        (
            "yarn.resourcemanager.resource-tracker.address",
            local(rm[2]),
        ),
        ("yarn.resourcemanager.admin.address", local(rm[3])),
        ("yarn.resourcemanager.webapp.address", local(rm[4])),
        (
            "yarn.resourcemanager.webapp.ui-actions.enabled",
            own("true"),
        ),
        (
            "yarn.resourcemanager.scheduler.class",
            own(
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler",
            ),
        ),
        ("yarn.scheduler.minimum-allocation-mb", own("64")),
        ("yarn.scheduler.maximum-allocation-mb", own("4096")),
        ("yarn.nodemanager.hostname", own("127.0.0.1")),
        ("yarn.nodemanager.address", local(node[0])),
        ("yarn.nodemanager.localizer.address", local(node[1])),
        ("yarn.nodemanager.webapp.address", local(node[2])),
        ("yarn.nodemanager.collector-service.address", local(node[3])),
        ("yarn.nodemanager.resource.memory-mb", own("8192")),
        ("yarn.nodemanager.resource.cpu-vcores", own("8")),
        // TensorFlow's python maps much that it does not use.
        ("yarn.nodemanager.vmem-check-enabled", own("false")),
        ("yarn.nodemanager.pmem-check-enabled", own("false")),
        (
            "yarn.nodemanager.local-dirs",
            folder(&format!("{name}/local")),
        ),
        ("yarn.nodemanager.log-dirs", folder(&format!("{name}/logs"))),
        (
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage",
            own("99.0"),
        ),
        ("yarn.log-aggregation-enable", own("true")),
        ("yarn.nodemanager.remote-app-log-dir", own("/yarn-logs")),
        ("yarn.am.liveness-monitor.expiry-interval-ms", own("60000")),
        // A lost node is told of by then.
        ("yarn.nm.liveness-monitor.expiry-interval-ms", own("20000")),
        (
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms",
            own("200"),
        ),
    ];
    let queues = [
        ("yarn.scheduler.capacity.root.queues", own("default")),
        ("yarn.scheduler.capacity.root.default.capacity", own("100")),
        (
            "yarn.scheduler.capacity.maximum-am-resource-percent",
            own("0.5"),
        ),
        (
            "yarn.scheduler.capacity.resource-calculator",
            own("org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"),
        ),
        ("yarn.scheduler.capacity.node-locality-delay", own("-1")),
    ];
    let files: [(&str, &[(&str, String)]); 4] = [
        ("core-site.xml", &core),
        ("hdfs-site.xml", &site),
        ("yarn-site.xml", &yarn),
        ("capacity-scheduler.xml", &queues),
    ];
    for (file, settings) in files {
        std::fs::write(conf.join(file), xml(settings)).with_context(|| file.to_owned())?;
    }
    Ok(())
}

impl Place for Cluster {
    fn user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("HADOOP_CONF_DIR", self.data.join("conf"));
        command.env("HADOOP_USER_NAME", "root");
        command
    }

    fn flags(&self, _is_patient: bool) -> Vec<String> {
        words(&["--on=yarn"])
    }

    /// Kills a NodeManager, and what it had started.
    fn lose_host(&mut self) -> Result<bool> {
        let node = self.other_node();
        let ours = format!("NM_PORT={}", self.nodes[node]);
        let mut daemon = self.running[node].take().context("the node does not run")?;
        daemon.kill();
        for process in with_environment(&[&ours]) {
            let _ = Command::new("kill")
                .args(["-9", &process.to_string()])
                .output();
        }
        Ok(true)
    }

    fn heal(&mut self) -> Result<()> {
        for (node, name) in NODES.iter().enumerate() {
            if self.running[node].is_none() {
                let conf = format!("conf-{}", node + 1);
                let command = self.java(&conf, "yarn.server.nodemanager.NodeManager");
                self.running[node] = Some(Daemon::start(name, &command, &self.data)?);
            }
        }
        let begin = Instant::now();
        while self.ask("/ws/v1/cluster/metrics")["clusterMetrics"]["activeNodes"] != 2 {
            if begin.elapsed() > PATIENCE {
                bail!("YARN has no two nodes after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn adopts(&self) -> bool {
        true
    }

    fn has_master(&self) -> bool {
        true
    }

    /// Applications, their folders on HDFS, processes of their containers.
    fn left(&self) -> Result<String> {
        let begin = Instant::now();
        loop {
            let mut left = String::new();
            let apps =
                self.ask("/ws/v1/cluster/apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING");
            if !apps["apps"]["app"].is_null() {
                left += &apps.to_string();
            }
            let folder = "/webhdfs/v1/user/root/.downpour?op=LISTSTATUS&user.name=root";
            if get(self.files, folder).is_some_and(|a| a.contains("pathSuffix")) {
                left += "files on HDFS";
            }
            for node in self.nodes {
                let found = with_environment(&[&format!("NM_PORT={node}")]);
                if !found.is_empty() {
                    left += &format!("processes {found:?}");
                }
            }
            if left.is_empty() || begin.elapsed() > PATIENCE / 3 {
                return Ok(left);
            }
            std::thread::sleep(POLL);
        }
    }

    fn refusals(&self) -> Vec<(Vec<String>, &'static str)> {
        let with = |flag: &str| words(&["--on=yarn", flag, "--workers=1", "--", "true"]);
        let large = self.data.join("large.toml");
        let text = "on = 'yarn'\ncommand = ['true']\n[tasks.worker]\ncount = 1\nresources = { memory = '64G' }\n";
        let written = std::fs::write(&large, text);
        let mut all = vec![
            (with("--queue=none"), "queue"),
            (with("--queue=-x"), "a plain name"),
            (with("--file=/no/such"), "cannot read the file '/no/such'"),
        ];
        if written.is_ok() {
            all.push((
                vec![large.display().to_string()],
                "a container of this cluster has at most 4096 MiB",
            ));
        }
        all
    }
}
