//! HDFS: a NameNode and a DataNode of Hadoop, by Maven.

use super::daemon::{Daemon, free_ports, get};
use super::{Engine, Service, install};
use crate::process::run;
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const ARTIFACTS: &[&str] = &[
    "org.apache.hadoop:hadoop-common:3.4.2",
    "org.apache.hadoop:hadoop-hdfs:3.4.2",
    "org.apache.hadoop:hadoop-hdfs-client:3.4.2",
];

/// Hadoop reaches into Java's own packages, which Java 17 asks to be told.
pub(super) const OPENS: &[&str] = &["lang", "util", "net", "io", "nio"];

pub(super) const ENGINE: Engine = Engine {
    name: "hdfs",
    install: |home| install::maven(ARTIFACTS, home).map(|_| ()),
    start,
    tests: &[&["hdfs", "--", "--nocapture"], &["stores", "--", "hdfs"]],
};

fn start(home: &Path, data: &Path) -> Result<Service> {
    let [rpc, http, data_port, data_http, data_ipc] = free_ports()?;
    let conf = data.join("conf");
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
    let local = |port: u16| format!("127.0.0.1:{port}");
    let core = [
        ("fs.defaultFS", format!("hdfs://{}", local(rpc))),
        ("hadoop.tmp.dir", folder("tmp")),
    ];
    let site = [
        ("dfs.replication", "1".to_owned()),
        ("dfs.permissions.enabled", "false".to_owned()),
        ("dfs.namenode.name.dir", format!("file://{}", folder("nn"))),
        ("dfs.datanode.data.dir", format!("file://{}", folder("dn"))),
        ("dfs.namenode.http-address", local(http)),
        ("dfs.namenode.rpc-bind-host", "127.0.0.1".to_owned()),
        ("dfs.datanode.address", local(data_port)),
        ("dfs.datanode.http.address", local(data_http)),
        ("dfs.datanode.ipc.address", local(data_ipc)),
        ("dfs.datanode.hostname", "127.0.0.1".to_owned()),
        (
            "dfs.namenode.datanode.registration.ip-hostname-check",
            "false".to_owned(),
        ),
        ("dfs.namenode.safemode.extension", "0".to_owned()),
    ];
    std::fs::write(conf.join("core-site.xml"), xml(&core)).context("core-site.xml")?;
    std::fs::write(conf.join("hdfs-site.xml"), xml(&site)).context("hdfs-site.xml")?;
    let java = |class: &str| {
        let mut command = Command::new("java");
        for package in OPENS {
            command.arg(format!("--add-opens=java.base/java.{package}=ALL-UNNAMED"));
        }
        let path = format!("{}:{}/lib/*", conf.display(), home.display());
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Djava.net.preferIPv4Stack=true")
            .args(["-cp", &path])
            .arg(format!("org.apache.hadoop.hdfs.server.{class}"))
            .env("HADOOP_CONF_DIR", &conf);
        command
    };
    let mut format = java("namenode.NameNode");
    format.args(["-format", "-nonInteractive"]);
    let format_log = std::fs::File::create(data.join("format.log")).context("its log")?;
    run(format.stderr(format_log)).context("see format.log")?;
    let mut name_node = Daemon::start("namenode", &java("namenode.NameNode"), data)?;
    let mut data_node = Daemon::start("datanode", &java("datanode.DataNode"), data)?;
    let query = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState";
    name_node.wait_until(|| get(http, query).is_some())?;
    let is_live = || get(http, query).is_some_and(|a| a.contains("\"NumLiveDataNodes\" : 1"));
    data_node.wait_until(is_live)?;
    Ok(Service {
        // The NameNode ends last.
        daemons: vec![data_node, name_node],
        environment: vec![
            ("DOWNPOUR_TEST_HDFS", format!("hdfs://{}", local(rpc))),
            ("HADOOP_CONF_DIR", conf.display().to_string()),
        ],
    })
}

/// Hadoop's form of settings.
pub(super) fn xml(settings: &[(&str, String)]) -> String {
    let mut text = "<configuration>\n".to_owned();
    for (name, value) in settings {
        let _ = writeln!(
            text,
            "<property><name>{name}</name><value>{value}</value></property>"
        );
    }
    text + "</configuration>\n"
}
