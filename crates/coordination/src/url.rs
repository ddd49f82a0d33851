//! Which service a URL means.

use crate::folder::Folder;
use crate::register::{Error, Register, Result};
use std::path::Path;
use std::time::Duration;

/// A service lives, or is not there: nobody waits longer to learn it.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// A coordination service and the path of a job's registers in it.
///
/// ```
/// use downpour_coordination::Coordinator;
/// let etcd: Coordinator = "etcd://a:2379,b:2379/jobs/mnist".parse()?;
/// assert_eq!(etcd.to_string(), "etcd://a:2379,b:2379/jobs/mnist");
/// let wrong = "redis://a:1/x".parse::<Coordinator>().unwrap_err().to_string();
/// assert!(wrong.contains("no such service: redis"), "{wrong}");
/// # Ok::<(), downpour_coordination::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinator {
    service: Service,
    hosts: String,
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Etcd,
    ZooKeeper,
    Folder,
}

impl Service {
    fn scheme(self) -> &'static str {
        match self {
            Service::Etcd => "etcd",
            Service::ZooKeeper => "zk",
            Service::Folder => "file",
        }
    }
}

impl std::fmt::Display for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}://{}/{}",
            self.service.scheme(),
            self.hosts,
            self.path
        )
    }
}

impl std::str::FromStr for Coordinator {
    type Err = Error;

    fn from_str(url: &str) -> Result<Coordinator> {
        // A password belongs in no command line, where all of the machine can read it.
        let shown = match url.rsplit_once('@') {
            Some((_, rest)) => format!("…@{rest}"),
            None => url.to_owned(),
        };
        let wrong = |reason: String| Error::Url {
            url: shown.clone(),
            reason,
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(wrong("no scheme".to_owned()));
        };
        let service = match scheme {
            "etcd" => Service::Etcd,
            "zk" | "zookeeper" => Service::ZooKeeper,
            "file" => Service::Folder,
            other => return Err(wrong(format!("no such service: {other}"))),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(wrong(
                "a user and a password may not stand in it".to_owned(),
            ));
        }
        for host in hosts.split(',').filter(|_| service != Service::Folder) {
            let port = host.rsplit_once(':').and_then(|(name, port)| {
                let port = port.parse::<u16>().ok()?;
                (!name.is_empty()).then_some(port)
            });
            if port.is_none() {
                return Err(wrong(format!("'{host}' is not HOST:PORT")));
            }
        }
        if path.is_empty() {
            return Err(wrong("no path, by which jobs are told apart".to_owned()));
        }
        Ok(Coordinator {
            service,
            hosts: hosts.to_owned(),
            path: path.trim_end_matches('/').to_owned(),
        })
    }
}

/// Connects to a service, and asks it once whether it is there. Calls of an election with this lease
/// must not outlast a renewal.
pub fn open(coordinator: &Coordinator, lease: Duration) -> Result<Box<dyn Register>> {
    let register = connect(coordinator, LONGEST_WAIT)?;
    register.read("chief")?;
    drop(register);
    connect(coordinator, (lease / 4).min(LONGEST_WAIT))
}

fn connect(coordinator: &Coordinator, within: Duration) -> Result<Box<dyn Register>> {
    let Coordinator {
        service,
        hosts,
        path,
    } = coordinator;
    match service {
        Service::Folder => Ok(Box::new(Folder::open(&Path::new("/").join(path))?)),
        #[cfg(feature = "etcd")]
        Service::Etcd => Ok(Box::new(crate::Etcd::open(hosts, path, within)?)),
        #[cfg(feature = "zookeeper")]
        Service::ZooKeeper => Ok(Box::new(crate::ZooKeeper::open(hosts, path, within)?)),
        #[cfg(not(all(feature = "etcd", feature = "zookeeper")))]
        _ => Err(Error::Url {
            url: coordinator.to_string(),
            reason: format!(
                "this program was built without it (feature `coordination`), and so cannot ask {hosts} within {within:?}"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_refused_in_one_line_that_holds_no_password() {
        for (url, part) in [
            ("a:2379", "no scheme"),
            ("etcd://a/x", "'a' is not HOST:PORT"),
            ("etcd://a:1,:2/x", "':2' is not HOST:PORT"),
            ("zk://a:99999/x", "'a:99999' is not HOST:PORT"),
            ("etcd://a:2379", "no path"),
            ("etcd://me:secret@a:2379/x", "password may not stand"),
        ] {
            let error = url.parse::<Coordinator>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(
                !error.contains('\n') && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
