//! How a lane begins: the two tasks tell each other who they are and which life this is; a task of the same host
//! learns the name of a Unix socket and goes on there.
//!
//! ```text
//! magic | length u16 | Hello      ──►
//!                                 ◄──  magic | length u16 | Welcome
//! 'L' on the same connection, or the same again on the Unix socket
//! ```

use super::Lanes;
use super::lane::Lane;
use super::socket::Socket;
use super::table::Calling;
use downpour_graph::{Result, Status};
use downpour_tensor::shared::{self, SharedMemory};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};

/// The first bytes of a lane, either way; they end with the version.
pub(crate) const MAGIC: &[u8; 8] = b"DPLANE2\n";

/// Longest introduction.
const MOST: usize = 4 << 10;

/// The connection is to be used.
const GO: u8 = b'L';

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    /// `/job:J/replica:0/task:N` of who calls.
    task: String,
    incarnation: u64,
    /// Where it listens, for texts.
    address: String,
    /// Who it wants.
    to: String,
    /// Its end of the connection: another one at the far end means that something is in between.
    at: Option<SocketAddr>,
    /// Its memory that tasks of the same host can read.
    #[serde(default)]
    shared: Shared,
    /// Which of its calls this is.
    number: u64,
    /// In which life of who it wants it has taken calls of it, and the last of them: with this call they are dead.
    seen: Option<(u64, u64)>,
}

/// File, first address and length of [`SharedMemory`].
type Shared = Option<(i32, u64, u64)>;

/// What a peer has said of itself.
pub(crate) struct Who {
    /// `/job:J/replica:0/task:N`.
    pub(crate) task: String,
    pub(crate) incarnation: u64,
    pub(crate) address: String,
    pub(crate) shared: Option<SharedMemory>,
    /// Whether this task called; which of the caller's calls it was, and what it said of earlier ones.
    pub(crate) is_own: bool,
    pub(crate) number: u64,
    pub(crate) seen: Option<(u64, u64)>,
}

fn own_shared() -> Shared {
    shared::open().map(|s| (s.file, s.base, s.len))
}

fn their_shared(shared: Shared) -> Option<SharedMemory> {
    shared.map(|(file, base, len)| SharedMemory { file, base, len })
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Welcome {
    incarnation: u64,
    /// Unix socket that the caller may use instead.
    near: Option<String>,
    refused: Option<String>,
    /// As in [`Hello`].
    #[serde(default)]
    shared: Shared,
}

impl Lanes {
    /// Makes sure that there is a lane to `peer`, in this life of it, if it is known.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        peer: &str,
        (address, own_address): (&str, &str),
        incarnation: Option<u64>,
    ) -> Result<Arc<Lane>> {
        let turn = self.turn_for(peer);
        let _turn = turn.lock().await;
        let calling = loop {
            let found = self.state.lock().table.call(peer, incarnation);
            match found {
                Err(calling) => break calling,
                // One that does not answer is ended by that.
                Ok(lane) if self.answers(&lane).await => return Ok(lane),
                Ok(_) => {}
            }
        };
        let failed =
            |e: io::Error| Status::unavailable(format!("no lane to {peer} at {address}: {e}"));
        let call = self.call(peer, (address, own_address), incarnation, calling);
        let attempt = tokio::time::timeout(self.limits.connect, call);
        let late = |_| failed(io::ErrorKind::TimedOut.into());
        let (welcome, socket) = attempt.await.map_err(late)?.map_err(failed)?;
        let found = welcome.incarnation;
        let Some(socket) = socket else {
            let wanted = incarnation.unwrap_or_default();
            return Err(Status::aborted(format!(
                "a lane to {peer} expects a different device incarnation: {wanted} vs. {found}. Your worker job (\"{peer}\") was probably restarted. Check your worker job for the reason why it was restarted."
            )));
        };
        let who = Who {
            task: peer.to_owned(),
            incarnation: found,
            address: address.to_owned(),
            shared: their_shared(welcome.shared),
            is_own: true,
            number: calling.number,
            seen: None,
        };
        self.adopt(who, socket).map_err(failed)
    }

    /// What the peer says, and a connection to it if this is the life of it that is wanted.
    async fn call(
        &self,
        peer: &str,
        (address, own_address): (&str, &str),
        incarnation: Option<u64>,
        calling: Calling,
    ) -> io::Result<(Welcome, Option<Socket>)> {
        let mut far = TcpStream::connect(address).await?;
        far.set_nodelay(true)?;
        let mut hello = Hello {
            task: self.own.clone(),
            incarnation: self.incarnation,
            address: own_address.to_owned(),
            to: peer.to_owned(),
            at: Some(far.local_addr()?),
            shared: own_shared(),
            number: calling.number,
            seen: calling.seen.map(|s| (s.incarnation, s.number)),
        };
        let welcome = introduce(&mut far, &hello).await?;
        if incarnation.is_some_and(|i| i != welcome.incarnation) {
            return Ok((welcome, None));
        }
        if let Some(name) = &welcome.near {
            hello.at = None;
            // A task in another network namespace has no such socket here.
            if let Ok(socket) = near(name, &hello, welcome.incarnation).await {
                return Ok((welcome, Some(socket)));
            }
        }
        far.write_all(&[GO]).await?;
        let socket = Socket::new(far.into_std()?)?;
        Ok((welcome, Some(socket)))
    }

    /// Listens where tasks of the same host come.
    pub(crate) fn listen_near(&self) -> io::Result<UnixListener> {
        let name = format!("downpour-{}-{:016x}", std::process::id(), self.incarnation);
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        // A task listens once.
        let _ = self.near.set(name);
        Ok(listener)
    }
}

async fn near(name: &str, hello: &Hello, incarnation: u64) -> io::Result<Socket> {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let socket = std::os::unix::net::UnixStream::connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let welcome = introduce(&mut socket, hello).await?;
    if welcome.incarnation != incarnation {
        return Err(io::ErrorKind::NotConnected.into());
    }
    socket.write_all(&[GO]).await?;
    Socket::new(socket.into_std()?)
}

/// A connection of either kind.
pub(crate) trait Way: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin {
    /// Whether the other end is what a caller says its end is, and on this host.
    fn is_near(&self, at: Option<SocketAddr>) -> bool;
    fn into_socket(self) -> io::Result<Socket>;
}

impl Way for TcpStream {
    fn is_near(&self, at: Option<SocketAddr>) -> bool {
        let (Ok(peer), Ok(own)) = (self.peer_addr(), self.local_addr()) else {
            return false;
        };
        at == Some(peer) && peer.ip() == own.ip()
    }

    fn into_socket(self) -> io::Result<Socket> {
        Socket::new(self.into_std()?)
    }
}

impl Way for UnixStream {
    fn is_near(&self, _: Option<SocketAddr>) -> bool {
        false
    }

    fn into_socket(self) -> io::Result<Socket> {
        Socket::new(self.into_std()?)
    }
}

/// Receives a task that wants a lane.
pub(crate) async fn greet(mut way: impl Way, lanes: &Arc<Lanes>) {
    let received = tokio::time::timeout(lanes.limits.connect, receive(&mut way, lanes)).await;
    if let Ok(Ok(who)) = received
        && let Ok(socket) = way.into_socket()
    {
        // Refused only by a task that is about to end.
        let _ = lanes.adopt(who, socket);
    }
}

async fn receive(way: &mut impl Way, lanes: &Lanes) -> io::Result<Who> {
    let hello: Hello = read(way).await?;
    let refused =
        (hello.to != lanes.own).then(|| format!("this is {}, not {}", lanes.own, hello.to));
    let welcome = Welcome {
        incarnation: lanes.incarnation,
        near: lanes.near.get().filter(|_| way.is_near(hello.at)).cloned(),
        refused,
        shared: own_shared(),
    };
    if welcome.refused.is_none() {
        lanes.expect(&hello.task);
    }
    write(way, &welcome).await?;
    if welcome.refused.is_some() || way.read_u8().await? != GO {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(Who {
        task: hello.task,
        incarnation: hello.incarnation,
        address: hello.address,
        shared: their_shared(hello.shared),
        is_own: false,
        number: hello.number,
        seen: hello.seen,
    })
}

async fn introduce(way: &mut (impl Way + ?Sized), hello: &Hello) -> io::Result<Welcome> {
    write(way, hello).await?;
    let welcome: Welcome = read(way).await?;
    match &welcome.refused {
        Some(why) => Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            why.clone(),
        )),
        None => Ok(welcome),
    }
}

async fn write(way: &mut (impl Way + ?Sized), value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let len = u16::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&text);
    way.write_all(&bytes).await
}

async fn read<T: for<'a> Deserialize<'a>>(way: &mut (impl Way + ?Sized)) -> io::Result<T> {
    let mut magic = [0; MAGIC.len()];
    way.read_exact(&mut magic).await?;
    let len = usize::from(way.read_u16_le().await?);
    if magic != *MAGIC || len > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; len];
    way.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// Says hello as another task does, and means it.
#[cfg(test)]
pub(super) async fn as_task(socket: &mut TcpStream, task: &str, to: &str) {
    let hello = Hello {
        task: task.to_owned(),
        incarnation: 1,
        address: "?".to_owned(),
        to: to.to_owned(),
        at: None,
        shared: None,
        number: 1,
        seen: None,
    };
    introduce(socket, &hello).await.unwrap();
    socket.write_all(&[GO]).await.unwrap();
}

/// Receives a task and says nothing more.
#[cfg(test)]
pub(super) async fn mute(mut socket: TcpStream, lanes: &Lanes) -> TcpStream {
    receive(&mut socket, lanes).await.unwrap();
    socket
}
