//! The MNIST images that ship with the project, and what every classifier of them has in common:
//! what examples and the demo train on.

use crate::Draws;
use downpour_build::{DType, Graph, Operation, Output, Result, Status, Tensor};
use downpour_client::Session;
use downpour_formats::Files;
use downpour_formats::record::Compression;
use downpour_formats::storage::join;
use downpour_formats::stream::ByteStream;
use downpour_train::MonitoredSession;
use std::sync::Arc;

/// Pixels of an image.
pub const PIXELS: usize = 784;

/// Images to test a model with in one step: all at once would need much memory.
const TESTED_AT_ONCE: usize = 1000;

/// Images and what they show. A copy or a share of them shares their memory.
///
/// ```
/// use downpour::mnist::Mnist;
/// let test = Mnist::shipped()?.test;
/// let (pixels, labels) = test.at(0..3);
/// assert_eq!(pixels.shape().to_string(), "[3,784]");
/// assert_eq!(labels.as_slice::<i32>()?, [7, 2, 1]);
/// // The second of three workers' share begins with the second image.
/// let share = test.share(1, 3);
/// assert_eq!((share.len(), share.at(0..1).1.as_slice::<i32>()?), (3333, &[2][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Images {
    /// Grey values from 0 to 255, [`PIXELS`] for each image.
    pixels: Arc<[u8]>,
    /// Digits.
    labels: Arc<[u8]>,
    /// These are the ones from here,
    first: usize,
    /// so far apart.
    stride: usize,
}

/// Images to train with and images to test with.
///
/// ```
/// use downpour::mnist::Mnist;
/// let mnist = Mnist::shipped()?;
/// assert_eq!((mnist.train.len(), mnist.test.len()), (60_000, 10_000));
/// assert_eq!(mnist.train.at(0..4).1.as_slice::<i32>()?, [5, 0, 4, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mnist {
    /// 60,000 images.
    pub train: Images,
    /// 10,000 others.
    pub test: Images,
}

/// Longest file that is read: the largest of the four has 47 MB.
const LIMIT: usize = 64 << 20;

impl Mnist {
    /// Reads the four files of a directory.
    pub fn read(dir: &str) -> Result<Mnist> {
        Ok(Mnist {
            train: Images::read(dir, "train")?,
            test: Images::read(dir, "t10k")?,
        })
    }

    /// Reads the files that ship with the project, from wherever in it the program runs.
    pub fn shipped() -> Result<Mnist> {
        let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/mnist");
        Mnist::read("data/mnist").or_else(|_| Mnist::read(built))
    }
}

impl Images {
    fn read(dir: &str, set: &str) -> Result<Images> {
        let labels = idx(&join(dir, &format!("{set}-labels-idx1-ubyte.gz")), 1)?;
        let pixels = idx(&join(dir, &format!("{set}-images-idx3-ubyte.gz")), 3)?;
        if pixels.len() != labels.len() * PIXELS {
            return Err(Status::new(
                downpour_build::Code::DataLoss,
                format!(
                    "{dir}: {} pixels do not fit {} labels",
                    pixels.len(),
                    labels.len()
                ),
            ));
        }
        Ok(Images {
            pixels: pixels.into(),
            labels: labels.into(),
            first: 0,
            stride: 1,
        })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        let all = self.labels.len();
        all.saturating_sub(self.first).div_ceil(self.stride)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All images `[n, 784]`, grey values from 0 to 1, and their labels `[n]`.
    pub fn all(&self) -> (Tensor, Tensor) {
        self.at(0..self.len())
    }

    /// The images and labels at these positions.
    pub fn at(&self, positions: impl Iterator<Item = usize>) -> (Tensor, Tensor) {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for i in positions {
            let i = self.first + i * self.stride;
            let image = &self.pixels[i * PIXELS..(i + 1) * PIXELS];
            pixels.extend(image.iter().map(|p| f32::from(*p) / 255.0));
            labels.push(i32::from(self.labels[i]));
        }
        let images = Tensor::vector(pixels);
        let flat = images.clone();
        let images = images.reshaped([labels.len(), PIXELS]).unwrap_or(flat);
        (images, Tensor::vector(labels))
    }

    /// Batches without end, in an order that follows from the seed.
    pub fn batches(&self, size: usize, seed: u64) -> Batches {
        Batches {
            images: self.clone(),
            size,
            draws: Draws::new(seed),
            left: Vec::new(),
        }
    }

    /// Every `count`-th image from number `index`: a worker's own share.
    pub fn share(&self, index: usize, count: usize) -> Images {
        Images {
            first: self.first + index * self.stride,
            stride: self.stride * count.max(1),
            ..self.clone()
        }
    }
}

/// Batches in random order: every image comes once before any comes again.
///
/// ```
/// use downpour::mnist::Mnist;
/// // Every thousandth image: ten of them, which two batches of five hold once each.
/// let images = Mnist::shipped()?.test.share(0, 1000);
/// let mut batches = images.batches(5, 42);
/// let mut seen = Vec::new();
/// for _ in 0..2 {
///     seen.extend_from_slice(batches.next_batch().1.as_slice::<i32>()?);
/// }
/// let mut all = images.all().1.as_slice::<i32>()?.to_vec();
/// (seen.sort(), all.sort());
/// assert_eq!(seen, all);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batches {
    images: Images,
    size: usize,
    draws: Draws,
    left: Vec<usize>,
}

impl Batches {
    /// The next images and labels.
    pub fn next_batch(&mut self) -> (Tensor, Tensor) {
        let mut positions = Vec::with_capacity(self.size);
        while positions.len() < self.size && !self.images.is_empty() {
            match self.left.pop() {
                Some(position) => positions.push(position),
                None => {
                    self.left = (0..self.images.len()).collect();
                    self.draws.shuffle(&mut self.left);
                }
            }
        }
        self.images.at(positions.into_iter())
    }
}

/// What a classifier of digits is fed with.
///
/// ```
/// use downpour::mnist::{Digits, PIXELS};
/// use downpour::{Graph, Server, ServerConfig, Session, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let digits = Digits::placeholders(&g);
/// let ink = digits.images.sum([1]);
/// let grey = Tensor::from_vec(vec![0.5f32; 2 * PIXELS], [2, PIXELS])?;
/// let ink = Session::new(&server, &g)?.step().feed(&digits.images, grey).fetch(&ink)?;
/// assert_eq!(ink.as_slice::<f32>()?, [392.0, 392.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Digits {
    /// `[n, 784]`, grey values from 0 to 1.
    pub images: Output,
    /// `[n]`.
    pub labels: Output,
}

impl Digits {
    /// Placeholders called `images` and `labels`.
    pub fn placeholders(g: &Graph) -> Digits {
        Digits {
            images: g.placeholder("images", DType::Float, [None, Some(PIXELS)]),
            labels: g.placeholder("labels", DType::Int32, [None]),
        }
    }

    /// The classifier that gives an image the digit of the largest of its `logits`.
    pub fn classifier(self, logits: &Output) -> Classifier {
        let guess = logits.argmax(1).cast(DType::Int32);
        let right = guess.equal(&self.labels).cast(DType::Float).sum(());
        Classifier {
            digits: self,
            right,
        }
    }
}

/// A model that tells digits.
///
/// ```
/// use downpour::mnist::{Digits, Mnist, PIXELS};
/// use downpour::{DType, Graph, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let digits = Digits::placeholders(&g);
/// // Takes every image for a seven, as 1028 of the 10,000 are.
/// let nothing = digits.images.matmul(&g.zeros(DType::Float, [PIXELS, 10]));
/// let seven = g.constant(7i32).one_hot(10, DType::Float);
/// let classifier = digits.classifier(&(nothing + seven));
/// let accuracy = classifier.accuracy(&Session::new(&server, &g)?, &Mnist::shipped()?.test)?;
/// assert_eq!(accuracy, 0.1028);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Classifier {
    digits: Digits,
    right: Output,
}

impl Classifier {
    /// Runs one step of training on a batch.
    pub fn train(
        &self,
        session: &mut MonitoredSession,
        train: &Operation,
        (images, labels): (Tensor, Tensor),
    ) -> Result<()> {
        let step = session.step().feed(&self.digits.images, images);
        step.feed(&self.digits.labels, labels).target(train).run()
    }

    /// Which share of these images it tells right.
    pub fn accuracy(&self, session: &Session, test: &Images) -> Result<f64> {
        let mut right = 0.0;
        for start in (0..test.len()).step_by(TESTED_AT_ONCE) {
            let (images, labels) = test.at(start..(start + TESTED_AT_ONCE).min(test.len()));
            let step = session.step().feed(&self.digits.images, images);
            let count = step.feed(&self.digits.labels, labels).fetch(&self.right)?;
            right += f64::from(count.scalar_value::<f32>()?);
        }
        Ok(right / test.len().max(1) as f64)
    }
}

/// The bytes of a compressed IDX file of this many dimensions.
fn idx(path: &str, dimensions: u8) -> Result<Vec<u8>> {
    let storage = Files::new();
    let mut stream = ByteStream::open(&storage, path, Compression::Gzip, LIMIT)?;
    let data = stream.read_all()?;
    let wrong = || {
        Status::new(
            downpour_build::Code::DataLoss,
            format!("{path} is no IDX file of {dimensions} dimensions"),
        )
    };
    let header = 4 + 4 * usize::from(dimensions);
    let (head, body) = data.split_at_checked(header).ok_or_else(wrong)?;
    let mut count = 1usize;
    for dim in head[4..].chunks_exact(4) {
        let dim = dim.iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
        count = count.checked_mul(dim).ok_or_else(wrong)?;
    }
    match head[..4] == [0, 0, 8, dimensions] && count == body.len() {
        true => Ok(body.to_vec()),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::Images;

    fn images(count: usize) -> Images {
        Images {
            pixels: vec![0; count * super::PIXELS].into(),
            labels: (0..count as u8).collect(),
            first: 0,
            stride: 1,
        }
    }

    fn labels(images: &Images) -> Vec<i32> {
        images.all().1.as_slice::<i32>().unwrap().to_vec()
    }

    #[test]
    fn shares_are_disjoint_and_complete() {
        let all = images(10);
        let shares: Vec<Images> = (0..3).map(|i| all.share(i, 3)).collect();
        assert_eq!(labels(&shares[0]), [0, 3, 6, 9]);
        assert_eq!(labels(&shares[2]), [2, 5, 8]);
        assert_eq!(labels(&shares[1].share(1, 2)), [4]);
        assert!(all.share(10, 11).is_empty());
    }

    #[test]
    fn every_image_comes_once_before_any_comes_again() {
        let mut batches = images(12).batches(4, 1);
        let mut round = || {
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.extend_from_slice(batches.next_batch().1.as_slice::<i32>().unwrap());
            }
            seen
        };
        let (mut first, mut second) = (round(), round());
        assert_ne!(first, second);
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second);
        assert!(first.into_iter().eq(0..12));
        assert_eq!(images(0).batches(4, 1).next_batch().1.num_elements(), 0);
    }
}
