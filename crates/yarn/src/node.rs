//! What an ApplicationMaster says to NodeManagers: start this in a container, end that one.

use crate::pb::{Fields, Message, PbError};
use crate::rpc::{Client, RpcError};
use crate::scheduler::{Allocated, ContainerId, NodeId};
use crate::token::{Credentials, Token};
use crate::webhdfs::FileStatus;
use std::collections::BTreeMap;

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB";
/// Of a file for a container: seen by this application alone.
const APPLICATION: i64 = 3;
const ARCHIVE: i64 = 1;
const FILE: i64 = 2;

/// What a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Memory in MiB.
    pub memory_mb: u64,
    /// Cores.
    pub cores: u32,
    /// Other kinds, as `yarn.io/gpu`.
    pub others: Vec<(String, u64)>,
}

impl Resource {
    pub(crate) fn message(&self) -> Message {
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut made = Message::new()
            .int(1, whole(self.memory_mb))
            .int(2, i64::from(self.cores));
        for (name, count) in &self.others {
            let entry = Message::new().text(1, name).int(2, whole(*count)).int(4, 0);
            made = made.message(3, &entry);
        }
        made
    }
}

/// What runs in a container.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// A line for `bash`; `<LOG_DIR>` in it is the folder whose files YARN keeps.
    pub command: String,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Files on HDFS that lie in the container's folder under these names; whether they are unpacked.
    pub files: BTreeMap<String, (FileStatus, bool)>,
    /// Tokens for what runs there.
    pub credentials: Credentials,
}

impl Launch {
    fn message(&self) -> Message {
        let mut made = Message::new();
        for (name, (file, is_archive)) in &self.files {
            let (host, port) = file.authority();
            let mut url = Message::new().text(1, file.scheme()).text(2, host);
            if let Some(port) = port {
                url = url.int(3, i64::from(port));
            }
            let url = url.text(4, file.path());
            let resource = Message::new()
                .message(1, &url)
                .int(2, i64::try_from(file.length).unwrap_or(i64::MAX))
                .int(3, file.modified)
                .int(4, if *is_archive { ARCHIVE } else { FILE })
                .int(5, APPLICATION);
            made = made.message(1, &Message::new().text(1, name).message(2, &resource));
        }
        if !self.credentials.is_empty() {
            made = made.bytes(2, &self.credentials.to_bytes());
        }
        for (name, value) in &self.env {
            made = made.message(4, &Message::new().text(1, name).text(2, value));
        }
        made.text(5, &self.command)
    }
}

/// Speaks to one NodeManager.
pub struct NodeManager {
    client: Client,
    node: NodeId,
}

impl NodeManager {
    /// With the token that an allocation brought.
    pub fn new(node: NodeId, token: Token) -> NodeManager {
        NodeManager {
            client: Client::new(PROTOCOL, vec![node.to_string()], token),
            node,
        }
    }

    fn refused(&self, text: String) -> RpcError {
        RpcError::Remote {
            address: self.node.to_string(),
            class: "refused".to_owned(),
            text,
        }
    }

    /// Starts a container.
    pub fn start(&mut self, container: &Allocated, launch: &Launch) -> Result<(), RpcError> {
        let one = Message::new()
            .message(1, &launch.message())
            .bytes(2, &container.token);
        let answer = self
            .client
            .call("startContainers", &Message::new().message(1, &one))?;
        match failure(&answer) {
            Ok(None) => Ok(()),
            Ok(Some(text)) => Err(self.refused(text)),
            Err(e) => Err(self.refused(e.to_string())),
        }
    }

    /// Ends a container.
    pub fn stop(&mut self, id: &ContainerId) -> Result<(), RpcError> {
        let request = Message::new().bytes(1, &id.bytes);
        self.client.call("stopContainers", &request).map(drop)
    }
}

/// Why a container was not started, if it was not.
fn failure(answer: &[u8]) -> Result<Option<String>, PbError> {
    let answer = Fields::read(answer)?;
    let Some(failed) = answer.all(3).next() else {
        return Ok(None);
    };
    let text = Fields::read(failed)?.message(2)?.text(1);
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_in_a_container_is_told_in_full() {
        let launch = Launch {
            command: "./x 1><LOG_DIR>/stdout".to_owned(),
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            files: BTreeMap::from([(
                "x".to_owned(),
                (
                    FileStatus {
                        url: "hdfs://nn:9000/apps/x".to_owned(),
                        length: 5,
                        modified: 6,
                    },
                    false,
                ),
            )]),
            credentials: Credentials::default(),
        };
        let made = launch.message();
        let read = Fields::read(made.as_bytes()).unwrap();
        assert_eq!(read.text(5), launch.command);
        let resource = read.message(1).unwrap().message(2).unwrap();
        assert_eq!(
            (
                resource.int(2),
                resource.int(3),
                resource.int(4),
                resource.int(5)
            ),
            (5, 6, 2, 3)
        );
        let url = resource.message(1).unwrap();
        assert_eq!(
            (
                url.text(1).as_str(),
                url.text(2).as_str(),
                url.int(3),
                url.text(4).as_str()
            ),
            ("hdfs", "nn", 9000, "/apps/x")
        );
    }

    #[test]
    fn a_refused_start_is_told() {
        let refused = Message::new().text(1, "no room\nat x");
        let failed = Message::new().message(2, &refused);
        let answer = Message::new().message(3, &failed);
        assert_eq!(
            failure(answer.as_bytes()).unwrap().as_deref(),
            Some("no room")
        );
        assert_eq!(failure(&[]).unwrap(), None);
    }
}
