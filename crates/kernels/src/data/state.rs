//! What a walk has come to, to be written down and gone on with later, perhaps in another process.
//!
//! A state mirrors the streams: numbers and elements of its own, and the states of the walks below.
//! A stream that writes down nothing is walked again from its start, as many elements as it had
//! given; that is right wherever its elements follow from its dataset.

use super::dataset::{Element, Got};
use downpour_graph::{Code, Result, Status};
use downpour_tensor::{DType, Encoded, Tensor};
use std::future::Future;
use std::pin::Pin;

/// TensorFlow's type name of an iterator's state.
const STATE_TYPE: &str = "tensorflow::Iterator";

/// Which writing this is.
const VERSION: &[u8] = b"downpour.1";

/// How deep states may nest: two for each level of a pipeline.
const MAX_DEPTH: u32 = 4000;

/// What saving gives; `None` where a stream has nothing to write down.
pub(super) type Saving<'a> = Pin<Box<dyn Future<Output = Result<Option<State>>> + Send + 'a>>;

/// What restoring gives.
pub(super) type Restoring<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// The state of one stream or walk.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) numbers: Vec<i64>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) inner: Vec<State>,
}

impl State {
    /// A state of numbers.
    pub(super) fn of<const N: usize>(numbers: [i64; N]) -> State {
        State {
            numbers: numbers.to_vec(),
            ..Default::default()
        }
    }

    /// The same with the state of a walk below.
    pub(super) fn with(mut self, below: State) -> State {
        self.inner.push(below);
        self
    }

    /// Whether a variant is anywhere in it.
    pub(super) fn holds_variants(&self) -> bool {
        self.tensors.iter().any(|t| t.dtype() == DType::Variant)
            || self.inner.iter().any(State::holds_variants)
    }

    /// Number `i`.
    pub(super) fn number(&self, i: usize) -> Result<i64> {
        self.numbers.get(i).copied().ok_or_else(misfit)
    }

    /// Number `i` as a size.
    pub(super) fn size(&self, i: usize) -> Result<usize> {
        usize::try_from(self.number(i)?).map_err(|_| misfit())
    }

    /// Number `i`, where -1 stands for none.
    pub(super) fn option(&self, i: usize) -> Result<Option<u64>> {
        Ok(u64::try_from(self.number(i)?).ok())
    }

    /// The state of walk `i` below.
    pub(super) fn below(&mut self, i: usize) -> Result<State> {
        self.inner.get_mut(i).map(std::mem::take).ok_or_else(misfit)
    }

    /// Adds elements; their number and lengths come first.
    pub(super) fn put_elements<'a>(&mut self, elements: impl Iterator<Item = &'a Element>) {
        let at = self.numbers.len();
        self.numbers.push(0);
        for element in elements {
            self.numbers[at] += 1;
            self.numbers.push(element.len() as i64);
            self.tensors.extend_from_slice(element);
        }
    }

    /// Takes back what [`State::put_elements`] added at number `at`, and tensors from the front.
    pub(super) fn take_elements(&mut self, at: usize) -> Result<Vec<Element>> {
        let count = self.size(at)?;
        let mut elements = Vec::new();
        for i in 0..count {
            let length = self.size(at + 1 + i)?;
            if length > self.tensors.len() {
                return Err(misfit());
            }
            elements.push(self.tensors.drain(..length).collect());
        }
        Ok(elements)
    }

    /// The state as a variant.
    pub(super) fn encode(&self) -> Encoded {
        let (mut numbers, mut tensors) = (Vec::new(), vec![]);
        self.flatten(&mut numbers, &mut tensors);
        tensors.insert(0, Tensor::vector(numbers));
        Encoded {
            type_name: STATE_TYPE.into(),
            metadata: VERSION.into(),
            tensors,
        }
    }

    fn flatten(&self, numbers: &mut Vec<i64>, tensors: &mut Vec<Tensor>) {
        let lengths = [self.numbers.len(), self.tensors.len(), self.inner.len()];
        numbers.extend(lengths.map(|n| n as i64));
        numbers.extend_from_slice(&self.numbers);
        tensors.extend_from_slice(&self.tensors);
        for below in &self.inner {
            below.flatten(numbers, tensors);
        }
    }

    /// The state in a variant.
    pub(super) fn decode(encoded: &Encoded) -> Result<State> {
        if encoded.type_name != STATE_TYPE || encoded.metadata != VERSION {
            return Err(Status::invalid_argument(
                "the variant is no state of an iterator that we have written",
            ));
        }
        let (first, tensors) = encoded.tensors.split_first().ok_or_else(misfit)?;
        let numbers = first.as_slice::<i64>().map_err(|_| misfit())?;
        let mut reader = Reader { numbers, tensors };
        let state = reader.state(0)?;
        if !reader.numbers.is_empty() || !reader.tensors.is_empty() {
            return Err(misfit());
        }
        Ok(state)
    }
}

struct Reader<'a> {
    numbers: &'a [i64],
    tensors: &'a [Tensor],
}

impl Reader<'_> {
    fn state(&mut self, depth: u32) -> Result<State> {
        let [n, t, i, rest @ ..] = self.numbers else {
            return Err(misfit());
        };
        let size = |n: &i64| usize::try_from(*n).map_err(|_| misfit());
        let (n, t, i) = (size(n)?, size(t)?, size(i)?);
        if depth > MAX_DEPTH || n > rest.len() || t > self.tensors.len() || i > rest.len() {
            return Err(misfit());
        }
        let (numbers, rest) = rest.split_at(n);
        let (tensors, others) = self.tensors.split_at(t);
        (self.numbers, self.tensors) = (rest, others);
        let inner = (0..i).map(|_| self.state(depth + 1));
        Ok(State {
            inner: inner.collect::<Result<_>>()?,
            numbers: numbers.to_vec(),
            tensors: tensors.to_vec(),
        })
    }
}

/// What a state says when it is not that of the dataset it is given to.
pub(super) fn misfit() -> Status {
    Status::invalid_argument("the saved state does not fit the iterator's dataset")
}

const ELEMENT: i64 = 0;
const ERROR: i64 = 1;
const END: i64 = 2;

/// An element, an error or the end as a state.
pub(super) fn got_state(got: &Got) -> State {
    match got {
        Ok(Some(element)) => State {
            numbers: vec![ELEMENT],
            tensors: element.clone(),
            inner: vec![],
        },
        Err(error) => State {
            numbers: vec![ERROR, error.code as i64],
            tensors: vec![Tensor::string(error.message.clone())],
            inner: vec![],
        },
        Ok(None) => State::of([END]),
    }
}

/// What [`got_state`] was made of.
pub(super) fn state_got(state: State) -> Result<Got> {
    match state.number(0)? {
        ELEMENT => Ok(Ok(Some(state.tensors))),
        ERROR => Ok(Err(error_in(&state)?)),
        END => Ok(Ok(None)),
        _ => Err(misfit()),
    }
}

fn error_in(state: &State) -> Result<Status> {
    let code = i32::try_from(state.number(1)?).unwrap_or(2);
    let text = state.tensors.first().ok_or_else(misfit)?;
    let text = text.as_strings().map_err(|_| misfit())?;
    let text = text
        .first()
        .map(|t| String::from_utf8_lossy(t).into_owned());
    Ok(Status::new(
        Code::from_number(code),
        text.unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_and_others_are_refused() {
        let mut state = State::of([7, -1]).with(State::of([3]).with(State::default()));
        state.put_elements([vec![Tensor::scalar(1i32)], vec![]].iter());
        let encoded = state.encode();
        let mut back = State::decode(&encoded).unwrap();
        assert_eq!(
            (back.number(0).unwrap(), back.option(1).unwrap()),
            (7, None)
        );
        assert_eq!(back.below(0).unwrap().inner.len(), 1);
        let elements = back.take_elements(2).unwrap();
        assert_eq!(elements.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
        let numbers = encoded.tensors[0].as_slice::<i64>().unwrap().to_vec();
        for cut in 0..numbers.len() {
            let mut less = encoded.clone();
            less.tensors[0] = Tensor::vector(numbers[..cut].to_vec());
            assert!(State::decode(&less).is_err());
        }
        let mut huge = encoded.clone();
        huge.tensors[0] = Tensor::vector(vec![i64::MAX, 0, i64::MAX]);
        assert!(State::decode(&huge).is_err());
    }
}
