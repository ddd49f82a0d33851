//! What an ApplicationMaster says to the ResourceManager: that it is there, what it needs, that it is done.

use crate::node::Resource;
use crate::pb::{Fields, Message, PbError};
use crate::rpc::{Client, RpcError};
use crate::token::Token;
use std::fmt;

const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
/// The ResourceManager does not know this ApplicationMaster: it was started again, and wants to be told.
const NOT_REGISTERED: &str = "ApplicationMasterNotRegisteredException";

/// A container's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId {
    /// Its message, for answers.
    pub(crate) bytes: Vec<u8>,
    text: String,
}

impl ContainerId {
    pub(crate) fn read(bytes: &[u8]) -> Result<ContainerId, PbError> {
        let id = Fields::read(bytes)?;
        let attempt = id.message(2)?;
        let app = attempt.message(1)?;
        let number = id.int(3);
        // Since the ResourceManager was started again so often, the upper bits say so.
        let epoch = match number >> 40 {
            0 => String::new(),
            epoch => format!("e{epoch}_"),
        };
        let text = format!(
            "container_{epoch}{}_{:04}_{:02}_{:06}",
            app.int(2),
            app.int(1),
            attempt.int(2),
            number & 0xff_ffff_ffff
        );
        Ok(ContainerId {
            bytes: bytes.to_vec(),
            text,
        })
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Where a NodeManager listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId {
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl NodeId {
    pub(crate) fn read(bytes: &[u8]) -> Result<NodeId, PbError> {
        let id = Fields::read(bytes)?;
        Ok(NodeId {
            host: id.text(1),
            port: u16::try_from(id.int(2)).map_err(|_| PbError("a port is none"))?,
        })
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A wish for containers that are all alike. For its priority it replaces the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Names the wish; the containers that come carry it.
    pub priority: u32,
    /// How many are still wanted.
    pub count: u32,
    /// What each has.
    pub resource: Resource,
    /// On nodes with this label.
    pub label: Option<String>,
}

/// A container that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Its name.
    pub id: ContainerId,
    /// Where it is.
    pub node: NodeId,
    /// Of the wish that it answers.
    pub priority: u32,
    /// What the node wants to see to start it.
    pub(crate) token: Vec<u8>,
}

/// A container that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its name.
    pub id: ContainerId,
    /// The process's exit code, or a negative number of YARN's.
    pub status: i32,
    /// What YARN says of it.
    pub diagnostics: String,
}

/// What the ResourceManager wants of the ApplicationMaster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Say again what is wanted.
    Resync,
    /// End.
    Shutdown,
}

/// What a heartbeat brought.
#[derive(Clone, Debug, Default)]
pub struct Allocation {
    /// Containers that were given.
    pub allocated: Vec<Allocated>,
    /// Containers that are over.
    pub completed: Vec<Completed>,
    /// Tokens for nodes.
    pub node_tokens: Vec<(NodeId, Token)>,
    /// How many nodes there are.
    pub nodes: i64,
    /// An order.
    pub command: Option<Command>,
}

/// How an application ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalStatus {
    /// As it should.
    Succeeded,
    /// It failed.
    Failed,
    /// Somebody wanted it to end.
    Killed,
}

/// Speaks to the ResourceManager.
pub struct Scheduler {
    client: Client,
    response: i64,
    host: String,
    port: u16,
    tracking_url: String,
}

impl Scheduler {
    /// For ResourceManagers of which one is active.
    pub fn new(addresses: Vec<String>, token: Token) -> Scheduler {
        Scheduler {
            client: Client::new(PROTOCOL, addresses, token),
            response: 0,
            host: String::new(),
            port: 0,
            tracking_url: String::new(),
        }
    }

    /// Says that the ApplicationMaster is there and listens at this address; the queue that it is in.
    pub fn register(
        &mut self,
        host: &str,
        port: u16,
        tracking_url: &str,
    ) -> Result<String, RpcError> {
        (self.host, self.port) = (host.to_owned(), port);
        tracking_url.clone_into(&mut self.tracking_url);
        self.response = 0;
        let request = Message::new()
            .text(1, host)
            .int(2, i64::from(port))
            .text(3, tracking_url);
        let answer = self.client.call("registerApplicationMaster", &request)?;
        Ok(Fields::read(&answer).map_err(malformed)?.text(5))
    }

    /// The heartbeat: says what is wanted and given back, hears what came.
    pub fn allocate(
        &mut self,
        asks: &[Ask],
        release: &[ContainerId],
        progress: f32,
    ) -> Result<Allocation, RpcError> {
        let mut request = Message::new();
        for ask in asks {
            request = request.message(1, &wish(ask));
        }
        for id in release {
            request = request.bytes(2, &id.bytes);
        }
        let request = request.int(4, self.response).float(5, progress);
        let answer = match self.client.call("allocate", &request) {
            Err(e) if e.is(NOT_REGISTERED) => {
                let (host, port, url) = (self.host.clone(), self.port, self.tracking_url.clone());
                self.register(&host, port, &url)?;
                return Ok(Allocation {
                    command: Some(Command::Resync),
                    ..Allocation::default()
                });
            }
            answer => answer?,
        };
        let (allocation, response, token) = read(&answer).map_err(malformed)?;
        self.response = response;
        if let Some(token) = token {
            self.client.renew(token);
        }
        Ok(allocation)
    }

    /// Says that the application is over; false if this must be said again.
    pub fn finish(
        &mut self,
        status: FinalStatus,
        diagnostics: &str,
        tracking_url: &str,
    ) -> Result<bool, RpcError> {
        let status = match status {
            FinalStatus::Succeeded => 1,
            FinalStatus::Failed => 2,
            FinalStatus::Killed => 3,
        };
        let request = Message::new()
            .text(1, diagnostics)
            .text(2, tracking_url)
            .int(3, status);
        let answer = self.client.call("finishApplicationMaster", &request)?;
        Ok(Fields::read(&answer).map_err(malformed)?.int(1) == 1)
    }
}

fn malformed(e: PbError) -> RpcError {
    RpcError::Io {
        address: "the ResourceManager".to_owned(),
        reason: e.to_string(),
    }
}

fn wish(ask: &Ask) -> Message {
    let priority = Message::new().int(1, i64::from(ask.priority));
    let made = Message::new()
        .message(1, &priority)
        .text(2, "*")
        .message(3, &ask.resource.message())
        .int(4, i64::from(ask.count))
        .int(5, 1);
    match &ask.label {
        Some(label) => made.text(6, label),
        None => made,
    }
}

/// What an answer says, its number, and a token to be used from now on.
fn read(answer: &[u8]) -> Result<(Allocation, i64, Option<Token>), PbError> {
    let answer = Fields::read(answer)?;
    let mut made = Allocation {
        nodes: answer.int(7),
        command: match answer.int(1) {
            1 => Some(Command::Resync),
            2 => Some(Command::Shutdown),
            _ => None,
        },
        ..Allocation::default()
    };
    for bytes in answer.all(3) {
        let container = Fields::read(bytes)?;
        let priority = container.message(5)?.int(1);
        made.allocated.push(Allocated {
            id: ContainerId::read(container.bytes(1))?,
            node: NodeId::read(container.bytes(2))?,
            priority: u32::try_from(priority).map_err(|_| PbError("a priority is negative"))?,
            token: container.bytes(6).to_vec(),
        });
    }
    for bytes in answer.all(4) {
        let status = Fields::read(bytes)?;
        made.completed.push(Completed {
            id: ContainerId::read(status.bytes(1))?,
            status: i32::try_from(status.maybe_int(4).unwrap_or(-1000)).unwrap_or(-1000),
            diagnostics: status.text(3),
        });
    }
    for bytes in answer.all(9) {
        let entry = Fields::read(bytes)?;
        made.node_tokens
            .push((NodeId::read(entry.bytes(1))?, Token::read(entry.bytes(2))?));
    }
    let token = answer.all(12).next_back().map(Token::read).transpose()?;
    Ok((made, answer.int(2), token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: i64) -> Message {
        let app = Message::new().int(1, 7).int(2, 1_700_000_000_000);
        let attempt = Message::new().message(1, &app).int(2, 1);
        Message::new().message(2, &attempt).int(3, number)
    }

    #[test]
    fn containers_are_called_as_yarn_calls_them() {
        let name = |number| {
            ContainerId::read(id(number).as_bytes())
                .unwrap()
                .to_string()
        };
        assert_eq!(name(2), "container_1700000000000_0007_01_000002");
        assert_eq!(
            name(3 << 40 | 5),
            "container_e3_1700000000000_0007_01_000005"
        );
    }

    #[test]
    fn an_answer_is_read() {
        let node = Message::new().text(1, "n1").int(2, 41030);
        let token = Message::new()
            .bytes(1, b"id")
            .bytes(2, b"pw")
            .text(3, "k")
            .text(4, "s");
        let container = Message::new()
            .message(1, &id(2))
            .message(2, &node)
            .message(5, &Message::new().int(1, 3))
            .message(6, &token);
        let status = Message::new()
            .message(1, &id(4))
            .text(3, "gone")
            .int(4, -100);
        let answer = Message::new()
            .int(2, 17)
            .message(3, &container)
            .message(4, &status)
            .message(9, &Message::new().message(1, &node).message(2, &token))
            .message(12, &token);
        let (made, response, renewed) = read(answer.as_bytes()).unwrap();
        assert_eq!((response, made.allocated[0].priority), (17, 3));
        assert_eq!(made.allocated[0].node.to_string(), "n1:41030");
        assert_eq!(
            (
                made.completed[0].status,
                made.completed[0].diagnostics.as_str()
            ),
            (-100, "gone")
        );
        assert_eq!(made.node_tokens[0].1, renewed.unwrap());
        // And nothing that is cut off or changed does any harm.
        for end in 0..answer.as_bytes().len() {
            let _ = read(&answer.as_bytes()[..end]);
        }
        for at in 0..answer.as_bytes().len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = answer.as_bytes().to_vec();
                changed[at] = value;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn a_wish_names_its_label() {
        let ask = Ask {
            priority: 2,
            count: 3,
            resource: Resource {
                memory_mb: 512,
                cores: 2,
                others: vec![("yarn.io/gpu".to_owned(), 1)],
            },
            label: Some("gpu".to_owned()),
        };
        let made = wish(&ask);
        let read = Fields::read(made.as_bytes()).unwrap();
        assert_eq!((read.int(4), read.text(6).as_str()), (3, "gpu"));
        let resource = read.message(3).unwrap();
        assert_eq!((resource.int(1), resource.int(2)), (512, 2));
        assert_eq!(resource.message(3).unwrap().text(1), "yarn.io/gpu");
    }
}
