//! The frames of a lane, the connection of two of our tasks: how they look as bytes, and checked values of
//! what a peer sent. `net::lane` moves them; nothing else sees them.
//!
//! ```text
//! length u32 | kind u8 | flags u8 | 0 u16 | id u64 | payload of `length` bytes      all little-endian
//! ```
//! Small tensors travel inside a frame. A large one is offered; its receiver takes it when it is wanted,
//! and then its bytes come in frames of their own between others.

use crate::{Budget, Meter, decode_tensor, encode_tensor, proto};
use bytes::{BufMut as _, Bytes, BytesMut};
use downpour_graph::{Code, EdgeId, Status};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use prost::Message as _;
use std::fmt;

/// Bytes of a frame before its payload.
pub const HEADER: usize = 16;

/// Tensors up to this size travel inside a frame.
pub const INLINE: usize = 64 << 10;

/// Most bytes of one `Data` frame: what a small message may have to wait for.
pub const CHUNK: usize = 256 << 10;

/// Most bytes of any other frame: a tensor inside, its key, or the text of an error.
const MOST: usize = INLINE + (1 << 20);

/// Most characters of an error that is sent on.
const TEXT: usize = 256 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Run a graph; the id names the call.
    Run = 1,
    /// A call is over; the flag says that its step left nothing behind.
    Ended = 2,
    /// End a call early.
    Stop = 3,
    /// A tensor; the id is its step's.
    Tensor = 4,
    /// A tensor that can be taken; the id names the offer.
    Offer = 5,
    /// Send what was offered.
    Take = 6,
    /// Bytes of what was offered.
    Data = 7,
    /// What was offered is not wanted.
    Decline = 8,
    /// Are you there?
    Ping = 9,
    /// Yes.
    Pong = 10,
    /// Do you run this step? The id is the step's.
    Ask = 11,
    /// No; the flag says that it is known to be over.
    Told = 12,
    /// A tensor of a numbered edge; the id is its step's.
    Edge = 13,
    /// A tensor of a numbered edge that can be taken; the id names the offer.
    EdgeOffer = 14,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 14] = [
            Run, Ended, Stop, Tensor, Offer, Take, Data, Decline, Ping, Pong, Ask, Told, Edge,
            EdgeOffer,
        ];
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// The front of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that follow.
    pub len: usize,
    /// What it is.
    pub kind: Kind,
    /// Depends on the kind.
    pub flag: bool,
    /// Depends on the kind.
    pub id: u64,
}

/// Bytes that are no frame.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadFrame(&'static str);

type Result<T> = std::result::Result<T, BadFrame>;

impl Header {
    /// As bytes.
    pub fn encode(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let (a, rest) = out.split_at_mut(4);
        a.copy_from_slice(&(self.len as u32).to_le_bytes());
        let (b, c) = rest.split_at_mut(4);
        b.copy_from_slice(&[self.kind as u8, u8::from(self.flag), 0, 0]);
        c.copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// Checks the front of a frame.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Header> {
        let [a, b, c, d, kind, flag, 0, 0, id @ ..] = *bytes else {
            return Err(BadFrame("a frame has reserved bits"));
        };
        let kind = Kind::of(kind).ok_or(BadFrame("a frame of an unknown kind"))?;
        let flag = match flag {
            0 => false,
            1 => true,
            _ => return Err(BadFrame("a frame has unknown flags")),
        };
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let most = match kind {
            Kind::Stop | Kind::Take | Kind::Decline => 0,
            Kind::Ping | Kind::Pong | Kind::Ask | Kind::Told => 0,
            Kind::Data => CHUNK,
            _ => MOST,
        };
        if len > most {
            return Err(BadFrame("a frame is longer than its kind may be"));
        }
        let id = u64::from_le_bytes(id);
        Ok(Header {
            len,
            kind,
            flag,
            id,
        })
    }
}

/// A frame with nothing in it.
pub fn empty(kind: Kind, id: u64) -> Bytes {
    finish(Vec::from([0; HEADER]), kind, false, id)
}

/// The answer to [`Kind::Ask`] of a task that does not run the step.
pub fn told(step_id: u64, is_over: bool) -> Bytes {
    finish(Vec::from([0; HEADER]), Kind::Told, is_over, step_id)
}

/// Sets the header of a frame whose payload follows it.
fn finish(mut frame: Vec<u8>, kind: Kind, flag: bool, id: u64) -> Bytes {
    let header = Header {
        len: frame.len().saturating_sub(HEADER),
        kind,
        flag,
        id,
    };
    if let Some(front) = frame.first_chunk_mut::<HEADER>() {
        *front = header.encode();
    }
    frame.into()
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// One id for all parts of the step.
    pub step_id: u64,
    /// The task's handle of the graph.
    pub graph: u64,
    /// The session's handle.
    pub session: String,
}

impl Run {
    /// As a frame.
    pub fn encode(&self, call: u64) -> Bytes {
        let mut frame = Vec::with_capacity(HEADER + 16 + self.session.len());
        frame.extend_from_slice(&[0; HEADER]);
        frame.extend_from_slice(&self.step_id.to_le_bytes());
        frame.extend_from_slice(&self.graph.to_le_bytes());
        frame.extend_from_slice(self.session.as_bytes());
        finish(frame, Kind::Run, false, call)
    }

    /// From a payload.
    pub fn parse(payload: &[u8]) -> Result<Run> {
        let mut rest = Rest(payload);
        Ok(Run {
            step_id: rest.u64()?,
            graph: rest.u64()?,
            session: rest.text(rest.0.len())?.to_owned(),
        })
    }
}

/// The end of a call as a frame; `is_over` says that its step left nothing behind.
pub fn ended(call: u64, error: Option<&Status>, is_over: bool) -> Bytes {
    let mut frame = Vec::from([0; HEADER]);
    if let Some(status) = error {
        let mut end = status.message.len().min(TEXT);
        while !status.message.is_char_boundary(end) {
            end -= 1;
        }
        frame.extend_from_slice(&[status.code as u8, u8::from(status.derived)]);
        frame.extend_from_slice(status.message.get(..end).unwrap_or_default().as_bytes());
    }
    finish(frame, Kind::Ended, is_over, call)
}

/// The status in a payload, if there is one.
pub fn parse_status(payload: &[u8]) -> Result<Option<Status>> {
    let [code, derived, text @ ..] = payload else {
        return match payload {
            [] => Ok(None),
            _ => Err(BadFrame("a frame ends in the middle of a status")),
        };
    };
    let text = std::str::from_utf8(text).map_err(|_| BadFrame("a status is not text"))?;
    Ok(Some(Status {
        derived: *derived != 0,
        ..Status::new(Code::from_number(i32::from(*code)), text)
    }))
}

/// How the bytes of a tensor are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements of this type and shape.
    Plain(DType, Shape),
    /// A `TensorProto`: strings, resources, variants.
    Proto,
    /// Nothing: the value is dead.
    Dead,
}

impl Form {
    fn parse(rest: &mut Rest<'_>) -> Result<Form> {
        let [kind, rank] = rest.array()?;
        Ok(match kind {
            DEAD => Form::Dead,
            PROTO => Form::Proto,
            number => {
                let dtype = DType::from_number(i32::from(number));
                let dtype = dtype.map_err(|_| BadFrame("a tensor of an unknown type"))?;
                if rank == 0 {
                    return match dtype.size() {
                        Some(_) => Ok(Form::Plain(dtype, Shape::scalar())),
                        None => Err(BadFrame("a tensor without plain bytes")),
                    };
                }
                let mut dims = Vec::with_capacity(usize::from(rank));
                for _ in 0..rank {
                    let dim = i64::try_from(rest.u64()?);
                    dims.push(dim.map_err(|_| BadFrame("a tensor is too large"))?);
                }
                let shape =
                    Shape::checked(dims).map_err(|_| BadFrame("a tensor has too many elements"))?;
                if dtype.size().is_none() {
                    return Err(BadFrame("a tensor without plain bytes"));
                }
                Form::Plain(dtype, shape)
            }
        })
    }
}

/// Where in a step a tensor belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A key of the rendezvous: an edge inside a loop, of which there may be a value for each iteration.
    Key(String),
    /// A numbered edge.
    Edge(EdgeId),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Key(key) => f.write_str(key),
            Destination::Edge(EdgeId(number)) => write!(f, "edge {number}"),
        }
    }
}

/// A tensor that is sent, before its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorFront {
    /// The step.
    pub step_id: u64,
    /// Where in the step it belongs.
    pub to: Destination,
    /// How to read it.
    pub form: Form,
    /// How many bytes it has.
    pub len: usize,
}

/// A tensor as it travels.
pub enum Sending {
    /// One frame, and what follows it in the same frame.
    Inline(Bytes, Bytes),
    /// An offer, and the bytes to send when it is taken.
    Offered(Bytes, Bytes),
}

/// What follows a frame of a numbered edge.
pub enum Following {
    /// Nothing: it is all there.
    Nothing,
    /// The rest of the frame.
    Rest(Bytes),
    /// What to send when the offer is taken.
    Offered(Bytes),
}

/// Elements up to this size are copied beside their frame: less than what a piece of its own costs.
const BESIDE: usize = 2 << 10;

/// Appends a value of a numbered edge to `out`; `offer` is its number if it turns out to be large.
pub fn send_edge(
    out: &mut BytesMut,
    step_id: u64,
    edge: EdgeId,
    tensor: Option<&Tensor>,
    offer: u64,
) -> std::result::Result<Following, Status> {
    let encoded;
    let (kind, dims, len): (u8, &[usize], usize) = match tensor {
        None => (DEAD, &[], 0),
        Some(tensor) => match tensor.buffer() {
            Some(buffer) => {
                let kind = tensor.dtype().number() as u8;
                (kind, tensor.shape().dims(), buffer.len())
            }
            None => {
                encoded = Bytes::from(encode_tensor(tensor)?.encode_to_vec());
                return Ok(send_proto(out, step_id, edge, encoded, offer));
            }
        },
    };
    let is_inline = len <= INLINE;
    let start = edge_front(out, step_id, edge, (kind, dims), (len, is_inline));
    let Some(buffer) = tensor.and_then(Tensor::buffer) else {
        finish_edge(out, start, step_id, 0);
        return Ok(Following::Nothing);
    };
    if len <= BESIDE {
        out.put_slice(buffer.as_bytes());
        finish_edge(out, start, step_id, 0);
        return Ok(Following::Nothing);
    }
    Ok(follow(out, (start, step_id), buffer.to_bytes(), offer))
}

/// A value that is no row of plain elements.
fn send_proto(
    out: &mut BytesMut,
    step_id: u64,
    edge: EdgeId,
    bytes: Bytes,
    offer: u64,
) -> Following {
    let is_inline = bytes.len() <= INLINE;
    let start = edge_front(out, step_id, edge, (PROTO, &[]), (bytes.len(), is_inline));
    follow(out, (start, step_id), bytes, offer)
}

fn follow(
    out: &mut BytesMut,
    (start, step_id): (usize, u64),
    bytes: Bytes,
    offer: u64,
) -> Following {
    if bytes.len() <= INLINE {
        finish_edge(out, start, step_id, bytes.len());
        return Following::Rest(bytes);
    }
    // Where it is, for a receiver that can read it there.
    out.put_u64_le(bytes.as_ptr() as u64);
    let header = Header {
        len: out.len() - start - HEADER,
        kind: Kind::EdgeOffer,
        flag: false,
        id: offer,
    };
    set_header(out, start, header);
    Following::Offered(bytes)
}

/// Appends all of a frame before the elements; where it begins.
fn edge_front(
    out: &mut BytesMut,
    step_id: u64,
    EdgeId(edge): EdgeId,
    (kind, dims): (u8, &[usize]),
    (len, is_inline): (usize, bool),
) -> usize {
    let start = out.len();
    out.put_bytes(0, HEADER);
    if !is_inline {
        out.put_u64_le(step_id);
        out.put_u64_le(len as u64);
    }
    out.put_u32_le(edge);
    out.put_u8(kind);
    out.put_u8(dims.len() as u8);
    for dim in dims {
        out.put_u64_le(*dim as u64);
    }
    start
}

fn finish_edge(out: &mut BytesMut, start: usize, step_id: u64, more: usize) {
    let header = Header {
        len: out.len() - start - HEADER + more,
        kind: Kind::Edge,
        flag: false,
        id: step_id,
    };
    set_header(out, start, header);
}

fn set_header(out: &mut BytesMut, start: usize, header: Header) {
    if let Some(front) = out.get_mut(start..start + HEADER) {
        front.copy_from_slice(&header.encode());
    }
}

/// Prepares a value for sending; `offer` is its number if it turns out to be large.
pub fn send(
    step_id: u64,
    key: &str,
    tensor: Option<&Tensor>,
    offer: u64,
) -> std::result::Result<Sending, Status> {
    let (form, bytes) = match tensor {
        None => (Form::Dead, Bytes::new()),
        Some(tensor) => match tensor.buffer() {
            Some(buffer) => {
                let form = Form::Plain(tensor.dtype(), tensor.shape().clone());
                (form, buffer.to_bytes())
            }
            None => (Form::Proto, encode_tensor(tensor)?.encode_to_vec().into()),
        },
    };
    let is_inline = bytes.len() <= INLINE;
    let mut frame = Vec::with_capacity(HEADER + 32 + key.len() + 64);
    frame.extend_from_slice(&[0; HEADER]);
    frame.extend_from_slice(&step_id.to_le_bytes());
    frame.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    let key_len = u16::try_from(key.len())
        .map_err(|_| Status::invalid_argument(format!("Rendezvous key is too long: {key}")))?;
    frame.extend_from_slice(&key_len.to_le_bytes());
    frame.extend_from_slice(key.as_bytes());
    match &form {
        Form::Plain(dtype, shape) => {
            frame.extend_from_slice(&[dtype.number() as u8, shape.rank() as u8]);
            for dim in shape.dims() {
                frame.extend_from_slice(&(*dim as u64).to_le_bytes());
            }
        }
        Form::Proto => frame.extend_from_slice(&[PROTO, 0]),
        Form::Dead => frame.extend_from_slice(&[DEAD, 0]),
    }
    if !is_inline {
        // Where it is, for a receiver that can read it there.
        frame.extend_from_slice(&(bytes.as_ptr() as u64).to_le_bytes());
        return Ok(Sending::Offered(
            finish(frame, Kind::Offer, false, offer),
            bytes,
        ));
    }
    let header = Header {
        len: frame.len() - HEADER + bytes.len(),
        kind: Kind::Tensor,
        flag: false,
        id: step_id,
    };
    if let Some(front) = frame.first_chunk_mut::<HEADER>() {
        *front = header.encode();
    }
    Ok(Sending::Inline(frame.into(), bytes))
}

/// In place of a type's number.
const PROTO: u8 = 255;
const DEAD: u8 = 254;

impl TensorFront {
    /// From a payload, with what follows in it.
    pub fn parse<'a>(payload: &'a [u8], budget: &Budget) -> Result<(TensorFront, &'a [u8])> {
        let mut rest = Rest(payload);
        let step_id = rest.u64()?;
        let len = usize::try_from(rest.u64()?).map_err(|_| BadFrame("a tensor is too large"))?;
        let key_len = usize::from(u16::from_le_bytes(rest.array()?));
        let key = rest.text(key_len)?.to_owned();
        let form = Form::parse(&mut rest)?;
        let front = TensorFront {
            step_id,
            to: Destination::Key(key),
            form,
            len,
        };
        front.check(budget)?;
        Ok((front, rest.0))
    }

    /// A value of a numbered edge, whole.
    pub fn parse_edge(
        step_id: u64,
        payload: &[u8],
        budget: &Budget,
    ) -> Result<(EdgeId, Option<Tensor>)> {
        let mut rest = Rest(payload);
        let edge = EdgeId(u32::from_le_bytes(rest.array()?));
        let front = TensorFront {
            step_id,
            to: Destination::Edge(edge),
            form: Form::parse(&mut rest)?,
            len: rest.0.len(),
        };
        front.check(budget)?;
        let bytes = Buffer::copy_from(rest.0);
        if let Form::Plain(dtype, shape) = front.form {
            let tensor = Tensor::from_buffer(dtype, shape, bytes);
            return match tensor {
                Ok(tensor) => Ok((edge, Some(tensor))),
                Err(_) => Err(BadFrame("a tensor's bytes do not fit its shape")),
            };
        }
        Ok((edge, front.with(bytes, budget)?))
    }

    /// An offer of a value of a numbered edge, with where its bytes are in the memory of who offers them.
    pub fn parse_edge_offer(payload: &[u8], budget: &Budget) -> Result<(TensorFront, u64)> {
        let mut rest = Rest(payload);
        let step_id = rest.u64()?;
        let len = usize::try_from(rest.u64()?).map_err(|_| BadFrame("a tensor is too large"))?;
        let edge = EdgeId(u32::from_le_bytes(rest.array()?));
        let form = Form::parse(&mut rest)?;
        let front = TensorFront {
            step_id,
            to: Destination::Edge(edge),
            form,
            len,
        };
        front.check(budget)?;
        Ok((front, rest.u64()?))
    }

    /// Whether it fits what it says of itself and what may be received.
    fn check(&self, budget: &Budget) -> Result<()> {
        if let Form::Plain(dtype, shape) = &self.form {
            let size = dtype.size().unwrap_or(0);
            if shape.num_elements().checked_mul(size) != Some(self.len) {
                return Err(BadFrame("a tensor's bytes do not fit its shape"));
            }
        }
        if self.form == Form::Dead && self.len != 0 {
            return Err(BadFrame("a dead tensor has bytes"));
        }
        let paid = Meter::from(budget).tensor(self.len, 1);
        paid.map_err(|_| BadFrame("a tensor is larger than what may be received"))
    }

    /// An offer from a payload, with where its bytes are in the memory of who offers them.
    pub fn parse_offer(payload: &[u8], budget: &Budget) -> Result<(TensorFront, u64)> {
        let (front, rest) = TensorFront::parse(payload, budget)?;
        let address = Rest(rest).u64()?;
        Ok((front, address))
    }

    /// The tensor, whose bytes are these; `None` if it is dead.
    pub fn with(&self, bytes: Buffer, budget: &Budget) -> Result<Option<Tensor>> {
        let bad = BadFrame("a tensor's bytes are not what they are said to be");
        match &self.form {
            Form::Dead => Ok(None),
            Form::Plain(dtype, shape) => {
                let tensor = Tensor::from_buffer(*dtype, shape.clone(), bytes);
                tensor.map(Some).map_err(|_| bad)
            }
            Form::Proto => {
                let Ok(tensor) = proto::TensorProto::decode(bytes.as_bytes()) else {
                    return Err(bad);
                };
                let tensor = decode_tensor(tensor, &mut Meter::from(budget));
                tensor.map(Some).map_err(|_| bad)
            }
        }
    }
}

/// A payload that is read from its front.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let split = self.0.split_at_checked(n);
        let (taken, rest) = split.ok_or(BadFrame("a frame ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken
            .try_into()
            .map_err(|_| BadFrame("a frame ends too early"))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, n: usize) -> Result<&'a str> {
        std::str::from_utf8(self.take(n)?).map_err(|_| BadFrame("a name is not text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(frame: &[u8]) -> (Header, Vec<u8>) {
        let header = Header::parse(frame[..HEADER].try_into().unwrap()).unwrap();
        (header, frame[HEADER..].to_vec())
    }

    #[test]
    fn frames_come_back_as_they_went() {
        let run = Run {
            step_id: 7,
            graph: 3,
            session: "abc".into(),
        };
        let (header, bytes) = payload(&run.encode(9));
        assert_eq!((header.kind, header.id, header.len), (Kind::Run, 9, 19));
        assert_eq!(Run::parse(&bytes).unwrap(), run);
        let status = Status::aborted("gone").as_derived();
        let (header, bytes) = payload(&ended(4, Some(&status), true));
        assert!(header.flag);
        assert_eq!(parse_status(&bytes).unwrap(), Some(status));
        let (_, bytes) = payload(&ended(4, None, false));
        assert_eq!(parse_status(&bytes).unwrap(), None);
    }

    #[test]
    fn tensors_of_all_forms_come_back() {
        let budget = Budget::default();
        let strings = Tensor::strings(vec![Bytes::from("a"), Bytes::from("bc")], [2]).unwrap();
        for tensor in [
            Some(Tensor::scalar(2.5f32)),
            Some(Tensor::vector(vec![true, false])),
            Some(Tensor::from_vec(vec![1i64; 0], [0, 3]).unwrap()),
            Some(strings),
            None,
        ] {
            let Ok(Sending::Inline(front, bytes)) = send(5, "k;0:0", tensor.as_ref(), 1) else {
                panic!("small tensors travel in one frame");
            };
            let (header, mut rest) = payload(&front);
            rest.extend_from_slice(&bytes);
            assert_eq!((header.kind, header.len), (Kind::Tensor, rest.len()));
            let (front, bytes) = TensorFront::parse(&rest, &budget).unwrap();
            assert_eq!((front.step_id, front.to.to_string().as_str()), (5, "k;0:0"));
            let back = front.with(Buffer::copy_from(bytes), &budget).unwrap();
            let show = |t: &Option<Tensor>| format!("{t:?}");
            assert_eq!(show(&back), show(&tensor));
        }
        let large = Tensor::vector(vec![1.0f32; INLINE]);
        let Ok(Sending::Offered(front, bytes)) = send(5, "k;0:0", Some(&large), 8) else {
            panic!("large tensors are offered");
        };
        let (header, rest) = payload(&front);
        assert_eq!((header.kind, header.id), (Kind::Offer, 8));
        let (front, address) = TensorFront::parse_offer(&rest, &budget).unwrap();
        assert_eq!(front.len, bytes.len());
        assert_eq!(address, bytes.as_ptr() as u64);
    }

    #[test]
    fn values_of_numbered_edges_come_back() {
        let budget = Budget::default();
        let strings = Tensor::strings(vec![Bytes::from("a"), Bytes::from("bc")], [2]).unwrap();
        for tensor in [
            Some(Tensor::scalar(2.5f32)),
            Some(Tensor::from_vec(vec![1i64; 0], [0, 3]).unwrap()),
            Some(Tensor::vector(vec![0.5f32; BESIDE])),
            Some(strings),
            None,
        ] {
            let mut out = BytesMut::from(&b"before"[..]);
            match send_edge(&mut out, 5, EdgeId(7), tensor.as_ref(), 1).unwrap() {
                Following::Nothing => {}
                Following::Rest(rest) => out.extend_from_slice(&rest),
                Following::Offered(_) => panic!("small tensors travel in one frame"),
            }
            let (header, rest) = payload(&out[6..]);
            assert_eq!(
                (header.kind, header.id, header.len),
                (Kind::Edge, 5, rest.len())
            );
            let (edge, back) = TensorFront::parse_edge(5, &rest, &budget).unwrap();
            assert_eq!(edge, EdgeId(7));
            assert_eq!(format!("{back:?}"), format!("{tensor:?}"));
            // A message that is cut may be a shorter one; only what stands before it says that it is not whole.
            let front = match tensor.as_ref().is_some_and(|t| t.buffer().is_some()) {
                true => 14,
                false => 6,
            };
            for cut in 0..rest.len().min(front) {
                assert!(TensorFront::parse_edge(5, &rest[..cut], &budget).is_err());
            }
        }
        let large = Tensor::vector(vec![1.0f32; INLINE]);
        let mut out = BytesMut::new();
        let sent = send_edge(&mut out, 5, EdgeId(7), Some(&large), 8).unwrap();
        let Following::Offered(bytes) = sent else {
            panic!("large tensors are offered");
        };
        let (header, rest) = payload(&out);
        assert_eq!((header.kind, header.id), (Kind::EdgeOffer, 8));
        let (front, address) = TensorFront::parse_edge_offer(&rest, &budget).unwrap();
        assert_eq!((front.step_id, front.len), (5, bytes.len()));
        assert_eq!(front.to, Destination::Edge(EdgeId(7)));
        assert_eq!(address, bytes.as_ptr() as u64);
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let good = empty(Kind::Ping, 1);
        let bad = |at: usize, byte: u8| {
            let mut bytes: [u8; HEADER] = good[..].try_into().unwrap();
            bytes[at] = byte;
            Header::parse(&bytes).is_err()
        };
        assert!(bad(0, 1) && bad(4, 0) && bad(4, 99) && bad(5, 2) && bad(6, 1));
        let budget = Budget::default();
        let tensor = Tensor::scalar(1.0f32);
        let Ok(Sending::Inline(front, _)) = send(1, "k", Some(&tensor), 1) else {
            panic!("inline");
        };
        let payload = &front[HEADER..];
        for cut in 0..payload.len() {
            assert!(TensorFront::parse(&payload[..cut], &budget).is_err());
        }
        // A length that does not fit the shape, and one that nobody could hold.
        for len in [5u64, u64::MAX] {
            let mut wrong = payload.to_vec();
            wrong[8..16].copy_from_slice(&len.to_le_bytes());
            assert!(TensorFront::parse(&wrong, &budget).is_err());
        }
        assert!(parse_status(&[1]).is_err());
        assert!(Run::parse(&[0; 15]).is_err());
    }
}
