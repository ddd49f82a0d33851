//! What comes in on a lane: frames out of a buffer, and the bytes of large tensors past it, straight into
//! the memory where they stay.

use super::socket::{Moved, Socket};
use downpour_graph::{EdgeId, Result, Status};
use downpour_tensor::{Buffer, BufferWriter, Tensor};
use downpour_wire::Budget;
use downpour_wire::lane::{self, BadFrame, HEADER, Header, Kind, Run, TensorFront};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;

/// Takes a value that was offered, or the news that it will not come.
pub type Taker = Box<dyn FnOnce(Result<Option<Tensor>>) + Send>;

/// Something that has come.
pub(crate) enum Arrival {
    Run(u64, Run),
    Ended(u64, Option<Status>, bool),
    Stop(u64),
    Tensor(TensorFront, Option<Tensor>),
    /// Values of one step along numbered edges.
    Edges(u64, Vec<(EdgeId, Option<Tensor>)>),
    /// The offer, and where its bytes are in the peer's memory.
    Offer(u64, TensorFront, u64),
    Take(u64),
    Decline(u64),
    Ping,
    /// What is known of a step is asked for.
    Ask(u64),
    /// A step does not run at the peer; whether it is over.
    Told(u64, bool),
    /// An offer that was taken is here.
    Taken(Taker, Result<Option<Tensor>>),
}

/// An offer that was taken and is on its way.
pub(crate) struct Incoming {
    pub(crate) front: TensorFront,
    pub(crate) bytes: BufferWriter,
    pub(crate) taker: Taker,
}

/// Offers on their way, by number.
pub(crate) type Coming = Mutex<HashMap<u64, Incoming>>;

/// The reading side of one lane.
#[derive(Default)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    /// What of the buffer has not been looked at.
    start: usize,
    end: usize,
    /// The transfer whose frame is being read, and what of the frame is missing.
    current: Option<(u64, Incoming, usize)>,
}

/// Bytes read at once, unless a frame is longer.
const READ: usize = 96 << 10;

/// Bytes after which other lanes get their turn.
const TURN: usize = 8 << 20;

impl Reader {
    /// Reads what is there; how many bytes that was. An error means that nothing more will come.
    pub(crate) fn read(
        &mut self,
        socket: &Socket,
        coming: &Coming,
        out: &mut Vec<Arrival>,
    ) -> io::Result<usize> {
        let mut read = 0;
        while read < TURN {
            let moved = match &mut self.current {
                Some((_, incoming, missing)) if self.start == self.end => {
                    let moved = socket.read_into(&mut incoming.bytes, *missing)?;
                    if let Moved::Some(n) = moved {
                        *missing -= n;
                    }
                    self.finish_piece(coming, out)?;
                    moved
                }
                _ => self.read_frames(socket, coming, out)?,
            };
            match moved {
                Moved::Some(n) => read += n,
                Moved::Nothing => break,
            }
            // What came is worth more than what may come, and a short read has emptied the socket.
            if self.current.is_none() && !out.is_empty() && coming.lock().is_empty() {
                break;
            }
        }
        Ok(read)
    }

    fn read_frames(
        &mut self,
        socket: &Socket,
        coming: &Coming,
        out: &mut Vec<Arrival>,
    ) -> io::Result<Moved> {
        let wanted = self.wanted();
        self.make_room(wanted);
        let limit = match self.start == self.end && !coming.lock().is_empty() {
            // A header and no more: what follows goes where it belongs.
            true => self.end + HEADER,
            false => self.buffer.len(),
        };
        let free = self.buffer.get_mut(self.end..limit).unwrap_or_default();
        let moved = socket.read(free)?;
        if let Moved::Some(n) = moved {
            self.end += n;
            self.parse(coming, out)?;
        }
        Ok(moved)
    }

    /// How long the frame is that has begun.
    fn wanted(&self) -> usize {
        let front = self.buffer.get(self.start..self.end).unwrap_or_default();
        match front.first_chunk().map(Header::parse) {
            Some(Ok(header)) if header.kind != Kind::Data => HEADER + header.len,
            _ => HEADER,
        }
    }

    /// Room for a frame of `wanted` bytes from `start` on.
    fn make_room(&mut self, wanted: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() < READ {
            self.buffer.resize(READ, 0);
        }
        if self.start + wanted > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if wanted > self.buffer.len() {
                self.buffer.resize(wanted, 0);
            }
        }
    }

    /// Takes what is complete out of the buffer.
    fn parse(&mut self, coming: &Coming, out: &mut Vec<Arrival>) -> io::Result<()> {
        loop {
            if let Some((_, incoming, missing)) = &mut self.current {
                let have = (self.end - self.start).min(*missing);
                let bytes = self.buffer.get(self.start..self.start + have);
                incoming.bytes.write(bytes.unwrap_or_default());
                *missing -= have;
                self.start += have;
                self.finish_piece(coming, out)?;
                if self.current.is_some() {
                    return Ok(());
                }
            }
            let there = self.buffer.get(self.start..self.end).unwrap_or_default();
            let Some(front) = there.first_chunk::<HEADER>() else {
                return Ok(());
            };
            let header = Header::parse(front).map_err(bad)?;
            if header.kind == Kind::Data {
                let found = coming.lock().remove(&header.id);
                let Some(incoming) = found.filter(|i| i.bytes.missing() >= header.len) else {
                    return Err(broken("bytes came that nobody asked for"));
                };
                self.current = Some((header.id, incoming, header.len));
                self.start += HEADER;
                continue;
            }
            let Some(payload) = there.get(HEADER..HEADER + header.len) else {
                return Ok(());
            };
            match header.kind {
                Kind::Edge => edge(header.id, payload, out).map_err(bad)?,
                _ => out.extend(arrival(header, payload).map_err(bad)?),
            }
            self.start += HEADER + header.len;
        }
    }

    /// When a frame of a transfer is complete: on to the next, or out with the tensor.
    fn finish_piece(&mut self, coming: &Coming, out: &mut Vec<Arrival>) -> io::Result<()> {
        let Some((id, incoming, missing)) = self.current.take() else {
            return Ok(());
        };
        if missing > 0 {
            self.current = Some((id, incoming, missing));
        } else if incoming.bytes.missing() > 0 {
            coming.lock().insert(id, incoming);
        } else {
            let Incoming {
                front,
                bytes,
                taker,
            } = incoming;
            let bytes = bytes
                .finish()
                .ok_or_else(|| broken("a tensor is not all there"))?;
            let tensor = front.with(bytes, &Budget::default());
            let tensor = tensor.map_err(|e| Status::data_loss(format!("{}: {e}", front.to)));
            out.push(Arrival::Taken(taker, tensor));
        }
        Ok(())
    }

    /// The transfer under way, when the lane ends.
    pub(crate) fn abandon(&mut self) -> Option<Incoming> {
        self.current.take().map(|(_, incoming, _)| incoming)
    }
}

/// Adds a value to those that came just before it for the same step: they are handed over together.
fn edge(step: u64, payload: &[u8], out: &mut Vec<Arrival>) -> Result<(), BadFrame> {
    let value = TensorFront::parse_edge(step, payload, &Budget::default())?;
    match out.last_mut() {
        Some(Arrival::Edges(last, values)) if *last == step => values.push(value),
        _ => out.push(Arrival::Edges(step, vec![value])),
    }
    Ok(())
}

fn arrival(header: Header, payload: &[u8]) -> Result<Option<Arrival>, BadFrame> {
    let id = header.id;
    Ok(Some(match header.kind {
        Kind::Run => Arrival::Run(id, Run::parse(payload)?),
        Kind::Ended => Arrival::Ended(id, lane::parse_status(payload)?, header.flag),
        Kind::Stop => Arrival::Stop(id),
        Kind::Tensor => {
            let budget = Budget::default();
            let (front, bytes) = TensorFront::parse(payload, &budget)?;
            let tensor = front.with(Buffer::copy_from(bytes), &budget)?;
            Arrival::Tensor(front, tensor)
        }
        Kind::Offer => {
            let (front, address) = TensorFront::parse_offer(payload, &Budget::default())?;
            Arrival::Offer(id, front, address)
        }
        Kind::EdgeOffer => {
            let (front, address) = TensorFront::parse_edge_offer(payload, &Budget::default())?;
            Arrival::Offer(id, front, address)
        }
        Kind::Take => Arrival::Take(id),
        Kind::Decline => Arrival::Decline(id),
        Kind::Ping => Arrival::Ping,
        Kind::Ask => Arrival::Ask(id),
        Kind::Told => Arrival::Told(id, header.flag),
        // That something came is all there is to it; bytes and values of edges never get here.
        Kind::Pong | Kind::Data | Kind::Edge => return Ok(None),
    }))
}

fn bad(e: BadFrame) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
