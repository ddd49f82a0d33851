//! Hadoop's settings, as its `*-site.xml` files have them: where the ResourceManagers and the name nodes are, several of each where a cluster
//! has spare ones. Pure: texts come in.

use std::collections::BTreeMap;

/// How often a value may refer to another.
const MAX_DEPTH: usize = 20;
/// Longest value once its references are filled in.
const MAX_VALUE: usize = 64 << 10;

/// Settings by name; those that were read later go before.
#[derive(Clone, Debug, Default)]
pub struct Conf(BTreeMap<String, String>);

impl Conf {
    /// Reads a file's text. What is no setting is passed over, as Hadoop does.
    pub fn read(&mut self, text: &str) {
        for property in text.split("<property>").skip(1) {
            let property = property.split("</property>").next().unwrap_or_default();
            if let (Some(name), Some(value)) =
                (element(property, "name"), element(property, "value"))
            {
                self.0.insert(name, value);
            }
        }
    }

    /// A value, with `${others}` filled in.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = self.0.get(name)?;
        let value = self.filled(value, 0);
        (!value.trim().is_empty()).then(|| value.trim().to_owned())
    }

    fn filled(&self, value: &str, depth: usize) -> String {
        let (Some((head, rest)), true) = (value.split_once("${"), depth < MAX_DEPTH) else {
            return value.to_owned();
        };
        let Some((name, rest)) = rest.split_once('}') else {
            return value.to_owned();
        };
        let inner = match self.0.get(name) {
            Some(inner) => self.filled(inner, depth + 1),
            None => format!("${{{name}}}"),
        };
        let mut whole = format!("{head}{inner}{}", self.filled(rest, depth + 1));
        if whole.len() > MAX_VALUE {
            whole.clear();
        }
        whole
    }

    fn list(&self, name: &str) -> Vec<String> {
        let value = self.get(name).unwrap_or_default();
        let words = value.split(',').map(str::trim).filter(|w| !w.is_empty());
        words.map(str::to_owned).collect()
    }

    /// An address of every ResourceManager: `yarn.resourcemanager.KEY`, or its host with the usual port.
    fn rm(&self, key: &str, usual: u16) -> Vec<String> {
        let name = format!("yarn.resourcemanager.{key}");
        let find = |suffix: &str| {
            self.get(&format!("{name}{suffix}")).or_else(|| {
                let host = self.get(&format!("yarn.resourcemanager.hostname{suffix}"))?;
                Some(format!("{host}:{usual}"))
            })
        };
        let ids = self.list("yarn.resourcemanager.ha.rm-ids");
        match ids.is_empty() {
            true => find("").into_iter().collect(),
            false => ids
                .iter()
                .filter_map(|id| find(&format!(".{id}")))
                .collect(),
        }
    }

    /// The web addresses of the ResourceManagers, `host:port`.
    pub fn rm_web(&self) -> Vec<String> {
        self.rm("webapp.address", 8088)
    }

    /// Where ApplicationMasters reach them.
    pub fn rm_scheduler(&self) -> Vec<String> {
        self.rm("scheduler.address", 8030)
    }

    /// The file system of the cluster: `hdfs://…`.
    pub fn file_system(&self) -> Option<String> {
        self.get("fs.defaultFS")
            .map(|url| url.trim_end_matches('/').to_owned())
    }

    /// The web addresses of that file system's name nodes, `host:port`.
    pub fn name_nodes(&self) -> Vec<String> {
        const KEY: &str = "dfs.namenode.http-address";
        let url = self.file_system().unwrap_or_default();
        let authority = url.split("://").nth(1).unwrap_or_default();
        let nodes = self.list(&format!("dfs.ha.namenodes.{authority}"));
        if !nodes.is_empty() {
            let keys = nodes.iter().map(|node| format!("{KEY}.{authority}.{node}"));
            return keys.filter_map(|key| self.get(&key)).collect();
        }
        let host = authority.split(':').next().filter(|host| !host.is_empty());
        let usual = host.map(|host| format!("{host}:9870"));
        let found = self
            .get(KEY)
            .filter(|address| !address.starts_with("0.0.0.0"));
        found.or(usual).into_iter().collect()
    }
}

fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    let mut value = value.trim().to_owned();
    for (escape, plain) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ] {
        value = value.replace(escape, plain);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(pairs: &[(&str, &str)]) -> Conf {
        let mut conf = Conf::default();
        for (name, value) in pairs {
            conf.read(&format!("<configuration><property>\n<name>{name}</name> <value>{value}</value></property></configuration>"));
        }
        conf
    }

    #[test]
    fn one_of_each_is_found() {
        let conf = conf(&[
            ("fs.defaultFS", "hdfs://nn:9000/"),
            ("host", "rm"),
            ("yarn.resourcemanager.hostname", "${host}"),
            (
                "yarn.resourcemanager.webapp.address",
                "${yarn.resourcemanager.hostname}:1",
            ),
        ]);
        assert_eq!(
            (conf.rm_web(), conf.rm_scheduler()),
            (vec!["rm:1".to_owned()], vec!["rm:8030".to_owned()])
        );
        assert_eq!(conf.file_system().as_deref(), Some("hdfs://nn:9000"));
        assert_eq!(conf.name_nodes(), ["nn:9870"]);
    }

    #[test]
    fn several_of_each_are_found() {
        let conf = conf(&[
            ("fs.defaultFS", "hdfs://big"),
            ("dfs.ha.namenodes.big", "n1, n2"),
            ("dfs.namenode.http-address.big.n1", "a:1"),
            ("dfs.namenode.http-address.big.n2", "b:1"),
            ("yarn.resourcemanager.ha.rm-ids", "r1,r2"),
            ("yarn.resourcemanager.hostname.r1", "c"),
            ("yarn.resourcemanager.hostname.r2", "d"),
            ("yarn.resourcemanager.scheduler.address.r2", "d:9"),
        ]);
        assert_eq!(conf.name_nodes(), ["a:1", "b:1"]);
        assert_eq!(conf.rm_web(), ["c:8088", "d:8088"]);
        assert_eq!(conf.rm_scheduler(), ["c:8030", "d:9"]);
    }

    #[test]
    fn hostile_settings_end() {
        let conf = conf(&[
            ("a", "${b}${b}"),
            ("b", "${a}${a}"),
            ("c", "${c"),
            ("d", "&amp;lt;"),
        ]);
        assert!(
            conf.get("a")
                .is_none_or(|value| value.len() <= 2 * MAX_VALUE)
        );
        assert_eq!(conf.get("c").as_deref(), Some("${c"));
        assert_eq!(conf.get("d").as_deref(), Some("&lt;"));
        let mut broken = Conf::default();
        broken.read("<property><name>x</name><property><value>");
        assert_eq!(broken.get("x"), None);
    }
}
