//! Listening: binds one address and serves gRPC on it until told to stop.

use crate::Limits;
use crate::lane::{self, Lanes};
use crate::serve::admission::{Admission, Admitted};
use crate::serve::deadline::Deadline;
use crate::serve::h2_server::{self, Methods, Services};
use crate::serve::health::{self, Greeting};
use crate::spin::Spinner;
use downpour_cluster::split_address;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;

/// Bound sockets, not yet serving: one for each address that the host's name stands for.
pub struct Listener {
    sockets: Vec<TcpListener>,
    address: SocketAddr,
}

impl Listener {
    /// Binds `host:port`; port 0 takes a free one. A name with several addresses (`localhost` is
    /// often both 127.0.0.1 and ::1) is bound at all of them: a peer may take any.
    pub async fn bind(address: &str) -> io::Result<Listener> {
        let (host, port) = split_address(address).map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("'{address}': {e}"))
        })?;
        Listener::bind_all(tokio::net::lookup_host((host, port)).await?).await
    }

    async fn bind_all(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<Listener> {
        let mut sockets = Vec::new();
        let mut bound: Vec<SocketAddr> = Vec::new();
        let mut missing = None;
        for mut address in addresses {
            if let (Some(first), 0) = (bound.first(), address.port()) {
                address.set_port(first.port());
            }
            if bound.contains(&address) {
                continue;
            }
            match TcpListener::bind(address).await {
                Ok(socket) => {
                    bound.push(socket.local_addr()?);
                    sockets.push(socket);
                }
                // A name may have addresses that this machine has not: IPv6 may be switched off.
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => missing = missing.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        match (bound.first(), missing) {
            (Some(&address), _) => Ok(Listener { sockets, address }),
            (None, Some(e)) => Err(e),
            (None, None) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
        }
    }

    /// The address that was bound; the first, if there are several.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What connects to it.
    pub(crate) fn incoming(self) -> Incoming {
        Incoming(self.sockets)
    }
}

/// Connections to any of several sockets.
pub(crate) struct Incoming(Vec<TcpListener>);

impl Incoming {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        for socket in &mut self.0 {
            if let Poll::Ready(found) = socket.poll_accept(context) {
                return Poll::Ready(found.map(|(socket, _)| socket));
            }
        }
        Poll::Pending
    }

    async fn next(&mut self) -> io::Result<TcpStream> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The next connection, however long it takes until one can be had.
    pub(crate) async fn accept(&mut self) -> TcpStream {
        loop {
            match self.next().await {
                Ok(socket) => return socket,
                Err(_) => tokio::time::sleep(BREATHER).await,
            }
        }
    }
}

/// How long to wait when no connection can be taken: too many files are open.
const BREATHER: Duration = Duration::from_millis(50);

/// Serves `methods` and `routes` behind `admission` until `stop` resolves, then lets open calls end
/// within the drain time.
pub async fn serve(
    listener: Listener,
    routes: Routes,
    methods: Methods,
    limits: Limits,
    (admission, lanes): (Arc<Admission>, Option<Arc<Lanes>>),
    stop: impl Future<Output = ()> + Send,
) {
    if let Some(lanes) = &lanes {
        lanes.admitted_by(admission.clone());
    }
    let services = Services {
        methods: Arc::new(methods),
        routes: Deadline::new(Admitted::new(routes.prepare(), admission.clone())),
        admission,
        limits,
        spinner: Spinner::new(&tokio::runtime::Handle::current()),
        lanes: lanes.clone(),
    };
    let (stopped, stopping) = tokio::sync::watch::channel(false);
    let mut incoming = Incoming(listener.sockets);
    // Dropping the set ends its connections, and with them their calls.
    let mut connections = tokio::task::JoinSet::new();
    let near = tokio::spawn(near(lanes.clone()));
    tokio::pin!(stop);
    loop {
        tokio::select! {
            found = incoming.next() => match found {
                Ok(socket) => {
                    // Without it only latency is lost.
                    let _ = socket.set_nodelay(true);
                    connections.spawn(greet(socket, services.clone(), stopping.clone()));
                }
                Err(_) => tokio::time::sleep(BREATHER).await,
            },
            Some(_) = connections.join_next() => {}
            () = &mut stop => break,
        }
    }
    drop(incoming);
    near.abort();
    let _ = stopped.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    // Whoever is still connected is cut off: stopping must not wait for a stuck client.
    let _ = tokio::time::timeout(limits.drain, drained).await;
    if let Some(lanes) = lanes {
        lanes.close();
    }
}

/// Receives tasks of the same host that want a lane.
async fn near(lanes: Option<Arc<Lanes>>) {
    // Without it lanes go over the network.
    let Some(lanes) = lanes else {
        return;
    };
    let Ok(listener) = lanes.listen_near() else {
        return;
    };
    let mut greetings = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            found = listener.accept() => match found {
                Ok((socket, _)) => {
                    let lanes = lanes.clone();
                    greetings.spawn(async move { lane::greet(socket, &lanes).await });
                }
                Err(_) => tokio::time::sleep(BREATHER).await,
            },
            Some(_) = greetings.join_next() => {}
        }
    }
}

/// Serves a connection in the language in which it begins.
async fn greet(
    socket: TcpStream,
    services: Services,
    stopping: tokio::sync::watch::Receiver<bool>,
) {
    // One that connects and says nothing must not stay for ever.
    match health::greeting(&socket, services.limits.keepalive).await {
        Greeting::Http2 => h2_server::serve(socket, services, stopping).await,
        Greeting::Http1 => health::answer(socket, &services.admission, stopping).await,
        Greeting::Lane => {
            if let Some(lanes) = &services.lanes {
                lane::greet(socket, lanes).await;
            }
        }
        Greeting::Silence => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_with_several_addresses_is_bound_at_all_on_one_port() {
        let mut wanted: Vec<SocketAddr> = vec!["127.0.0.1:0".parse().unwrap()];
        if TcpListener::bind("[::1]:0").await.is_ok() {
            wanted.push("[::1]:0".parse().unwrap());
        }
        // The same address twice, as resolvers like to answer, and one of another machine.
        wanted.push("127.0.0.1:0".parse().unwrap());
        wanted.push("192.0.2.1:0".parse().unwrap());
        let listener = Listener::bind_all(wanted.clone().into_iter())
            .await
            .unwrap();
        assert_eq!(listener.sockets.len(), wanted.len() - 2);
        let port = listener.address().port();
        assert!(
            listener
                .sockets
                .iter()
                .all(|s| s.local_addr().unwrap().port() == port)
        );
        let addresses: Vec<SocketAddr> = listener
            .sockets
            .iter()
            .map(|s| s.local_addr().unwrap())
            .collect();
        let mut incoming = Incoming(listener.sockets);
        for address in addresses {
            let near = TcpStream::connect(address).await.unwrap();
            let far = incoming.next().await.unwrap();
            assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap());
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error() {
        let first = Listener::bind("127.0.0.1:0").await.unwrap();
        let second = Listener::bind(&first.address().to_string()).await;
        assert_eq!(
            second.err().map(|e| e.kind()),
            Some(io::ErrorKind::AddrInUse)
        );
    }
}
