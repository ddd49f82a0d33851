//! What a lane has yet to send: short frames go before the next piece of a long transfer. Of several transfers the oldest
//! and the one with the least left take turns: values of one size arrive one after the other, so that work on the
//! first begins while the next is on its way; a short one does not wait for a long one, and none waits for ever.

use super::socket::{Moved, Socket};
use bytes::{Bytes, BytesMut};
use downpour_wire::lane::{CHUNK, Header, Kind};
use std::collections::VecDeque;
use std::io;

/// Short frames that may wait for a peer to read, and their bytes: several times what a slow one leaves unread of the steps
/// that it takes part in.
const MOST_FRAMES: usize = 1 << 18;
const MOST_BYTES: usize = 1 << 28;

/// The queue of one lane.
#[derive(Default)]
pub(crate) struct Writer {
    /// Frames that have begun to leave, in order.
    leaving: VecDeque<Bytes>,
    /// Short frames.
    frames: VecDeque<Bytes>,
    /// Short frames behind those, one after the other in one piece.
    tail: BytesMut,
    /// Offers that were taken, in that order, and what of them has not been sent.
    transfers: VecDeque<(u64, Bytes)>,
    /// Whether it is the turn of the transfer with the least left.
    is_shorts_turn: bool,
    /// Whether the short frames have a sign of life among them.
    pub(crate) has_pong: bool,
    /// Bytes of the short frames.
    waiting: usize,
    /// Values of numbered edges among the short frames.
    pub(crate) values: usize,
    /// Bytes that the socket has taken.
    pub(crate) sent: u64,
    /// Whether the socket takes no more.
    pub(crate) is_full: bool,
}

impl Writer {
    /// Adds a frame, which may be in two pieces.
    pub(crate) fn frame(&mut self, front: Bytes, rest: Bytes) {
        self.close_tail();
        self.waiting += front.len() + rest.len();
        self.frames.push_back(front);
        if !rest.is_empty() {
            self.frames.push_back(rest);
        }
    }

    /// Adds a frame that `encode` appends to what it is given; what it returns follows in the same frame.
    pub(crate) fn append<E>(
        &mut self,
        encode: impl FnOnce(&mut BytesMut) -> Result<Option<Bytes>, E>,
    ) -> Result<(), E> {
        let before = self.tail.len();
        let rest = match encode(&mut self.tail) {
            Ok(rest) => rest,
            Err(e) => {
                self.tail.truncate(before);
                return Err(e);
            }
        };
        self.waiting += self.tail.len() - before;
        if let Some(rest) = rest {
            self.close_tail();
            self.waiting += rest.len();
            self.frames.push_back(rest);
        }
        Ok(())
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.frames.push_back(self.tail.split().freeze());
        }
    }

    /// Whether more waits than a peer that reads would leave.
    pub(crate) fn is_overfull(&self) -> bool {
        self.frames.len() > MOST_FRAMES || self.waiting > MOST_BYTES
    }

    /// Drops what waits.
    pub(crate) fn discard(&mut self) {
        self.frames = VecDeque::new();
        self.tail = BytesMut::new();
        self.transfers = VecDeque::new();
        (self.waiting, self.values) = (0, 0);
    }

    /// Bytes that go before whatever is added next.
    pub(crate) fn ahead(&self) -> u64 {
        let leaving: usize = self.leaving.iter().map(Bytes::len).sum();
        (leaving + self.waiting) as u64
    }

    /// How many pieces of short frames wait.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> usize {
        self.frames.len() + usize::from(!self.tail.is_empty())
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
            match socket.write(&mut self.leaving)? {
                Moved::Some(n) => self.sent += n as u64,
                Moved::Nothing => {
                    self.is_full = true;
                    return Ok(false);
                }
            }
        }
    }

    /// What goes next: all short frames, or a piece of a transfer.
    fn choose(&mut self) {
        self.close_tail();
        std::mem::swap(&mut self.leaving, &mut self.frames);
        if !self.leaving.is_empty() {
            (self.has_pong, self.waiting, self.values) = (false, 0, 0);
            return;
        }
        let by_length = |(_, (_, rest)): &(usize, &(u64, Bytes))| rest.len();
        let shortest = self.transfers.iter().enumerate().min_by_key(by_length);
        let at = match (self.is_shorts_turn, shortest) {
            (true, Some((at, _))) => at,
            _ => 0,
        };
        let Some((offer, bytes)) = self.transfers.get_mut(at) else {
            return;
        };
        self.is_shorts_turn = !self.is_shorts_turn;
        let (offer, piece) = (*offer, bytes.split_to(bytes.len().min(CHUNK)));
        if bytes.is_empty() {
            self.transfers.remove(at);
        }
        let header = Header {
            len: piece.len(),
            kind: Kind::Data,
            flag: false,
            id: offer,
        };
        self.leaving
            .push_back(Bytes::copy_from_slice(&header.encode()));
        self.leaving.push_back(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which transfers the next pieces are of.
    fn order(writer: &mut Writer) -> Vec<u64> {
        let mut order = Vec::new();
        loop {
            writer.choose();
            let Some(front) = writer.leaving.pop_front() else {
                return order;
            };
            let front = front.first_chunk().expect("a header goes first");
            order.push(Header::parse(front).expect("it is one").id);
            writer.leaving.clear();
        }
    }

    #[test]
    fn transfers_of_one_size_go_one_after_the_other_and_a_short_one_beside_a_long_one() {
        let bytes = |pieces: usize| Bytes::from(vec![0; pieces * CHUNK]);
        let mut writer = Writer::default();
        for offer in [1, 2, 3] {
            writer.transfer(offer, bytes(2));
        }
        assert_eq!(order(&mut writer), [1, 1, 2, 2, 3, 3]);
        writer.transfer(4, bytes(5));
        writer.transfer(5, bytes(2));
        assert_eq!(order(&mut writer), [4, 5, 4, 5, 4, 4, 4]);
    }
}
