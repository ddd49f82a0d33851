//! The socket of a lane: a Unix one between tasks of a host, TCP otherwise. Never blocks.

use bytes::Bytes;
use downpour_tensor::BufferWriter;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// Pieces that one call of the system takes.
const PIECES: usize = 64;

/// One connected socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    is_near: bool,
}

/// How a transfer went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// So many bytes.
    Some(usize),
    /// None just now.
    Nothing,
}

impl Socket {
    /// Takes over a connected socket.
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> io::Result<Socket> {
        let fd = fd.into();
        rustix::io::ioctl_fionbio(&fd, true)?;
        let domain = rustix::net::sockopt::socket_domain(&fd)?;
        let is_near = domain == rustix::net::AddressFamily::UNIX;
        if is_near {
            // Without room for what comes at once only speed is lost.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, BUFFER);
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&fd, BUFFER);
        } else {
            // The system fits the buffers of TCP to the link: a slow one must not hold back a question behind
            // seconds of tensors. One that loses packets is tried again at a steady pace, not ever more rarely.
            let _ = rustix::net::sockopt::set_tcp_thin_linear_timeouts(&fd, true);
        }
        Ok(Socket { fd, is_near })
    }

    /// Bytes that were written and that the other end's system has not taken yet; unknown of Unix sockets.
    #[allow(
        unsafe_code,
        reason = "the only way to learn it is a call of the system"
    )]
    pub(crate) fn unacknowledged(&self) -> Option<u64> {
        if self.is_near {
            return None;
        }
        let mut held: libc::c_int = 0;
        // SAFETY: TIOCOUTQ writes one `int` to where it is told, which is one; the file is open.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut held) };
        (done == 0).then(|| u64::try_from(held).unwrap_or(0))
    }

    /// Reads into `buffer`.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Moved> {
        moved(rustix::io::read(&self.fd, buffer))
    }

    /// Reads at most `limit` bytes to where they belong.
    pub(crate) fn read_into(&self, tensor: &mut BufferWriter, limit: usize) -> io::Result<Moved> {
        let read = tensor.fill(limit, |free| {
            rustix::io::read(&self.fd, free).map(|(filled, _)| filled)
        });
        moved(read)
    }

    /// Writes from the front of `queue` and removes what went.
    pub(crate) fn write(&self, queue: &mut VecDeque<Bytes>) -> io::Result<Moved> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(queue.iter()) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let slices = slices.get(..count).unwrap_or_default();
        let mut nothing = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(&self.fd, slices, &mut nothing, SendFlags::NOSIGNAL);
        let moved = match moved(sent) {
            // Only reading ends so.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Moved::Nothing),
            moved => moved,
        }?;
        if let Moved::Some(mut n) = moved {
            while let Some(front) = queue.front_mut() {
                if n < front.len() {
                    bytes::Buf::advance(front, n);
                    break;
                }
                n -= front.len();
                queue.pop_front();
            }
        }
        Ok(moved)
    }

    /// The process at the other end, as the system says: known of Unix sockets.
    pub(crate) fn peer_process(&self) -> Option<i32> {
        if !self.is_near {
            return None;
        }
        let peer = rustix::net::sockopt::socket_peercred(&self.fd).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// Ends both directions; whoever waits for the socket hears of it.
    pub(crate) fn shut_down(&self) {
        // One that is closed already is what was wanted.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }
}

/// What may be under way unread.
const BUFFER: usize = 1 << 20;

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn moved(outcome: Result<usize, Errno>) -> io::Result<Moved> {
    match outcome {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(Moved::Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(e) => Err(e.into()),
    }
}
