//! Listening: binds one address and serves gRPC on it until told to stop.

use crate::Limits;
use crate::cluster::split_address;
use crate::deadline::Deadline;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;

/// A bound socket, not yet serving.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds `host:port`; port 0 takes a free one.
    pub async fn bind(address: &str) -> io::Result<Listener> {
        let (host, port) = split_address(address).map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("'{address}': {e}"))
        })?;
        let socket = TcpListener::bind((host, port)).await?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    }

    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves `routes` until `stop` resolves, then lets open calls end within the drain time.
pub async fn serve(
    listener: Listener,
    routes: Routes,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let (tx, rx) = tokio::sync::oneshot::channel::<()>();
    let incoming = TcpIncoming::from(listener.socket).with_nodelay(Some(true));
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(Some(16 << 20))
        .initial_connection_window_size(Some(64 << 20))
        .max_frame_size(Some(1 << 20))
        .max_concurrent_streams(Some(limits.streams_per_connection))
        .http2_max_pending_accept_reset_streams(Some(limits.pending_resets))
        .http2_max_header_list_size(limits.header_bytes)
        .http2_keepalive_interval(Some(limits.keepalive))
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
