//! The MNIST images that ship with the project: what examples and the demo train on.

use downpour_build::{Result, Status, Tensor};
use downpour_formats::LocalStorage;
use downpour_formats::record::Compression;
use downpour_formats::storage::join;
use downpour_formats::stream::ByteStream;

/// Pixels of an image.
pub const PIXELS: usize = 784;

/// Images and what they show.
#[derive(Clone)]
pub struct Images {
    /// Grey values from 0 to 1, [`PIXELS`] for each image.
    pixels: Vec<f32>,
    /// Digits.
    labels: Vec<i32>,
}

/// Images to train with and images to test with.
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
            pixels: pixels.iter().map(|p| f32::from(*p) / 255.0).collect(),
            labels: labels.iter().map(|l| i32::from(*l)).collect(),
        })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// All images `[n, 784]` and their labels `[n]`.
    pub fn all(&self) -> (Tensor, Tensor) {
        self.at(0..self.len())
    }

    /// The images and labels at these positions.
    pub fn at(&self, positions: impl Iterator<Item = usize>) -> (Tensor, Tensor) {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for i in positions {
            pixels.extend_from_slice(&self.pixels[i * PIXELS..(i + 1) * PIXELS]);
            labels.push(self.labels[i]);
        }
        let images = Tensor::vector(pixels);
        let flat = images.clone();
        let images = images.reshaped([labels.len(), PIXELS]).unwrap_or(flat);
        (images, Tensor::vector(labels))
    }

    /// Batches without end, in an order that follows from the seed.
    pub fn batches(&self, size: usize, seed: u64) -> Batches<'_> {
        Batches {
            images: self,
            size,
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    /// Every `count`-th image from number `index`: a worker's own share.
    pub fn share(&self, index: usize, count: usize) -> Images {
        let positions: Vec<usize> = (index..self.len()).step_by(count.max(1)).collect();
        let mut share = Images {
            pixels: Vec::with_capacity(positions.len() * PIXELS),
            labels: Vec::with_capacity(positions.len()),
        };
        for i in positions {
            let image = &self.pixels[i * PIXELS..(i + 1) * PIXELS];
            share.pixels.extend_from_slice(image);
            share.labels.push(self.labels[i]);
        }
        share
    }
}

/// Random batches.
pub struct Batches<'a> {
    images: &'a Images,
    size: usize,
    state: u64,
}

impl Batches<'_> {
    /// The next images and labels.
    pub fn next_batch(&mut self) -> (Tensor, Tensor) {
        let n = self.images.len() as u64;
        let mut draw = || {
            // Marsaglia's xorshift: any order will do.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            (self.state % n) as usize
        };
        let positions: Vec<usize> = (0..self.size).map(|_| draw()).collect();
        self.images.at(positions.into_iter())
    }
}

/// The bytes of a compressed IDX file of this many dimensions.
fn idx(path: &str, dimensions: u8) -> Result<Vec<u8>> {
    let storage = LocalStorage::new();
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
