//! Whether a client is still connected. A session remembers the connection it came over; when
//! that is gone and nobody uses the session, its client will not come to close it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Tells whether a connection is there. It comes with every request, as an extension.
#[derive(Clone, Debug)]
pub struct Presence(Weak<()>);

impl Presence {
    /// Whether the connection is there.
    pub fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// A connection, and what tells that it is there.
pub(crate) struct Client {
    socket: TcpStream,
    alive: Arc<()>,
}

impl Client {
    pub(crate) fn new(socket: TcpStream) -> Client {
        let alive = Arc::new(());
        Client { socket, alive }
    }
}

/// What a request knows of the connection it came over.
#[derive(Clone, Debug)]
pub(crate) struct ClientInfo {
    pub(crate) address: TcpConnectInfo,
    pub(crate) presence: Presence,
}

impl Connected for Client {
    type ConnectInfo = ClientInfo;

    fn connect_info(&self) -> ClientInfo {
        ClientInfo {
            address: self.socket.connect_info(),
            presence: Presence(Arc::downgrade(&self.alive)),
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
