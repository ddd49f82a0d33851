//! What a lane has yet to send: short frames go before the next piece of a long transfer, and several
//! transfers take turns.

use super::socket::{Moved, Socket};
use bytes::Bytes;
use downpour_wire::lane::{CHUNK, Header, Kind};
use std::collections::VecDeque;
use std::io;

/// The queue of one lane.
#[derive(Default)]
pub(crate) struct Writer {
    /// Frames that have begun to leave, in order.
    leaving: VecDeque<Bytes>,
    /// Short frames.
    frames: VecDeque<Bytes>,
    /// Offers that were taken, and what of them has not been sent.
    transfers: VecDeque<(u64, Bytes)>,
    /// Whether the socket takes no more.
    pub(crate) is_full: bool,
}

impl Writer {
    /// Adds a frame, which may be in two pieces.
    pub(crate) fn frame(&mut self, front: Bytes, rest: Bytes) {
        self.frames.push_back(front);
        if !rest.is_empty() {
            self.frames.push_back(rest);
        }
    }

    /// How many pieces of short frames wait.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Adds the bytes of an offer.
    pub(crate) fn transfer(&mut self, offer: u64, bytes: Bytes) {
        self.transfers.push_back((offer, bytes));
    }

    /// Sends what the socket takes; whether everything has gone.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        loop {
            if self.leaving.is_empty() {
                self.choose();
                if self.leaving.is_empty() {
                    self.is_full = false;
                    return Ok(true);
                }
            }
            if socket.write(&mut self.leaving)? == Moved::Nothing {
                self.is_full = true;
                return Ok(false);
            }
        }
    }

    /// What goes next: all short frames, or a piece of a transfer.
    fn choose(&mut self) {
        std::mem::swap(&mut self.leaving, &mut self.frames);
        if !self.leaving.is_empty() {
            return;
        }
        let Some((offer, mut bytes)) = self.transfers.pop_front() else {
            return;
        };
        let piece = bytes.split_to(bytes.len().min(CHUNK));
        let header = Header {
            len: piece.len(),
            kind: Kind::Data,
            flag: false,
            id: offer,
        };
        self.leaving
            .push_back(Bytes::copy_from_slice(&header.encode()));
        self.leaving.push_back(piece);
        if !bytes.is_empty() {
            self.transfers.push_back((offer, bytes));
        }
    }
}
