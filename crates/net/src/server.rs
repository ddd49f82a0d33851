//! Listening: binds one address and serves gRPC on it until told to stop.

use crate::Limits;
use crate::address::split_address;
use crate::deadline::Deadline;
use crate::gate::{Gate, Gated};
use crate::presence::Client;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tonic::codegen::tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;

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
}

/// Connections to any of several sockets.
struct Incoming(Vec<TcpIncoming>);

impl Stream for Incoming {
    type Item = io::Result<Client>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for socket in &mut self.0 {
            if let Poll::Ready(found) = Pin::new(socket).poll_next(context) {
                return Poll::Ready(found.map(|found| found.map(Client::new)));
            }
        }
        Poll::Pending
    }
}

/// Serves `routes` behind `gate` until `stop` resolves, then lets open calls end within the drain
/// time.
pub async fn serve(
    listener: Listener,
    routes: Routes,
    limits: Limits,
    gate: Arc<Gate>,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let (tx, rx) = tokio::sync::oneshot::channel::<()>();
    let sockets = listener.sockets.into_iter();
    let incoming = Incoming(
        sockets
            .map(|s| TcpIncoming::from(s).with_nodelay(Some(true)))
            .collect(),
    );
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(Some(16 << 20))
        .initial_connection_window_size(Some(64 << 20))
        .max_frame_size(Some(1 << 20))
        .max_concurrent_streams(Some(limits.streams_per_connection))
        .http2_max_pending_accept_reset_streams(Some(limits.pending_resets))
        .http2_max_header_list_size(limits.header_bytes)
        .http2_keepalive_interval(Some(limits.keepalive))
        .layer(tower_layer::layer_fn(move |inner| {
            Gated::new(inner, gate.clone())
        }))
        .layer(tower_layer::layer_fn(Deadline::new))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, async {
            let _ = rx.await;
        });
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended,
        () = stop => {}
    }
    let _ = tx.send(());
    match tokio::time::timeout(limits.drain, server).await {
        Ok(ended) => ended,
        // Whoever is still connected is cut off: stopping must not wait for a stuck client.
        Err(_) => Ok(()),
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
        let sockets = listener.sockets.into_iter();
        let mut incoming = Incoming(sockets.map(TcpIncoming::from).collect());
        for address in addresses {
            let near = tokio::net::TcpStream::connect(address).await.unwrap();
            let far = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context));
            let far = far.await.unwrap().unwrap();
            let info = tonic::transport::server::Connected::connect_info(&far);
            assert_eq!(info.address.remote_addr(), near.local_addr().ok());
            assert!(info.presence.is_there());
            drop(far);
            assert!(!info.presence.is_there());
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
