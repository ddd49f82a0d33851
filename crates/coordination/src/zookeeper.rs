//! Registers in ZooKeeper: a node each, changed by its version. Nodes are persistent: the lease is
//! the election's own, so that it ends alike whatever session time the ensemble allows.

use crate::record::Version;
use crate::register::{Error, Register, Result};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use zookeeper_client::{Acls, Client, CreateMode, Error as Refusal};

/// Registers below a path in a ZooKeeper ensemble.
pub struct ZooKeeper {
    /// Keeps the session alive between calls.
    runtime: Runtime,
    /// None after the session was lost, until the next call.
    client: Mutex<Option<Client>>,
    hosts: String,
    path: String,
    within: Duration,
}

impl ZooKeeper {
    /// Connects to `HOST:PORT[,HOST:PORT]`. Every call waits for an answer this long.
    pub fn open(hosts: &str, path: &str, within: Duration) -> Result<ZooKeeper> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("zookeeper")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|e| Error::Refused {
            service: format!("ZooKeeper at {hosts}"),
            reason: e.to_string(),
        })?;
        Ok(ZooKeeper {
            runtime,
            client: Mutex::new(None),
            hosts: hosts.to_owned(),
            path: format!("/{}", path.trim_matches('/')),
            within,
        })
    }

    fn node(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }

    /// Runs a call on a session, a new one if the last was lost, but not longer than it may take.
    fn with<T, F>(&self, call: impl FnOnce(Client) -> F) -> Result<std::result::Result<T, Refusal>>
    where
        F: Future<Output = std::result::Result<T, Refusal>>,
    {
        let mut held = self.client.lock();
        let (known, within) = (held.take(), self.within);
        let whole = async {
            let client = match known {
                Some(client) => client,
                None => {
                    let connector = Client::connector()
                        .with_session_timeout(within * 4)
                        .with_connection_timeout(within);
                    let client = connector.connect(&self.hosts).await?;
                    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                    match self.path.as_str() {
                        "/" => {}
                        path => client.mkdir(path, &options).await?,
                    }
                    client
                }
            };
            let outcome = call(client.clone()).await;
            Ok::<_, Refusal>((client, outcome))
        };
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(within, whole).await });
        match outcome {
            // What the node was like is the caller's to judge; the session is good.
            Ok(Ok((client, outcome))) => {
                let is_judged = matches!(
                    outcome,
                    Ok(_) | Err(Refusal::NoNode | Refusal::NodeExists | Refusal::BadVersion)
                );
                if is_judged {
                    *held = Some(client);
                    return Ok(outcome);
                }
                outcome.map(Ok).map_err(|e| self.refused(&e))
            }
            Ok(Err(Refusal::Timeout | Refusal::NoHosts)) | Err(_) => Err(Error::Silent {
                service: format!("ZooKeeper at {}", self.hosts),
                within,
            }),
            Ok(Err(why)) => Err(self.refused(&why)),
        }
    }

    fn refused(&self, why: &Refusal) -> Error {
        Error::Refused {
            service: format!("ZooKeeper at {}", self.hosts),
            reason: why.to_string(),
        }
    }
}

/// A node that was just made has version 0, which is [`Version::NONE`] here.
fn version(of_node: i32) -> Version {
    Version(u64::try_from(of_node).map_or(0, |v| v + 1))
}

impl Register for ZooKeeper {
    fn read(&self, name: &str) -> Result<(Version, Vec<u8>)> {
        let node = self.node(name);
        match self.with(async |client: Client| client.get_data(&node).await)? {
            Ok((value, stat)) => Ok((version(stat.version), value)),
            Err(Refusal::NoNode) => Ok((Version::NONE, Vec::new())),
            Err(why) => Err(self.refused(&why)),
        }
    }

    fn swap(&self, name: &str, expected: Version, value: &[u8]) -> Result<Option<Version>> {
        let node = self.node(name);
        let outcome = match expected {
            Version::NONE => self.with(async |client: Client| {
                let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                let (stat, _) = client.create(&node, value, &options).await?;
                Ok(stat.version)
            })?,
            Version(after) => self.with(async |client: Client| {
                let expected = i32::try_from(after - 1).unwrap_or(i32::MAX);
                let stat = client.set_data(&node, value, Some(expected)).await?;
                Ok(stat.version)
            })?,
        };
        match outcome {
            Ok(now) => Ok(Some(version(now))),
            Err(Refusal::NodeExists | Refusal::BadVersion | Refusal::NoNode) => Ok(None),
            Err(why) => Err(self.refused(&why)),
        }
    }
}
