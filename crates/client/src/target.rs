//! Which master a session talks to.

use downpour_build::Result;
use downpour_net::{Limits, MasterCalls, RemoteMaster};
use std::sync::Arc;

/// A master: one of this process, or `grpc://host:port`.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, Target};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let product = g.constant(6i32) * 7;
/// // Both reach the same master: the first calls it, the second talks to it over the network.
/// for target in [Target::from(&server), Target::from(server.target())] {
///     let session = Session::new(target, &g)?;
///     assert_eq!(session.fetch(&product)?.scalar_value::<i32>()?, 42);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Target(Kind);

#[derive(Clone)]
enum Kind {
    Address(String),
    Master(Arc<dyn MasterCalls>),
}

impl Target {
    /// A master of this process: calls it directly.
    pub fn local(master: Arc<dyn MasterCalls>) -> Target {
        Target(Kind::Master(master))
    }

    /// How calls reach it, and how it is called in `CreateSession`.
    pub(crate) fn open(&self) -> Result<(Arc<dyn MasterCalls>, String)> {
        match &self.0 {
            Kind::Master(master) => Ok((master.clone(), String::new())),
            Kind::Address(address) => {
                let _inside = crate::runtime::enter()?;
                let master = RemoteMaster::new(address, Limits::default())?;
                Ok((Arc::new(master), address.clone()))
            }
        }
    }
}

impl From<&str> for Target {
    fn from(address: &str) -> Target {
        Target(Kind::Address(address.to_owned()))
    }
}

impl From<String> for Target {
    fn from(address: String) -> Target {
        Target(Kind::Address(address))
    }
}

impl From<&Target> for Target {
    fn from(target: &Target) -> Target {
        target.clone()
    }
}
