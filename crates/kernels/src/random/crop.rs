//! `RandomCrop`: a piece of an image from a random place.

use super::philox::{Guarded, Words};
use crate::args::ints;
use crate::array::units::{Unit, with_unit};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Shape};

const TYPES: &[DType] = &[
    DType::UInt8,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::Float,
    DType::Double,
];

pub(super) fn register(r: &mut Registry) {
    r.add_typed("RandomCrop", &[("T", TYPES)], crop);
}

fn crop(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    Built::costly(move |ctx| {
        let (image, size) = (ctx.input(0)?, ctx.input(1)?);
        let invalid = |text: String| Err(Status::invalid_argument(text));
        let &[height, width, channels] = image.dims() else {
            return invalid(format!("input must be 3-dimensional{}", image.shape()));
        };
        if size.rank() != 1 {
            return invalid(format!("shape_t must be 1-dimensional{}", size.shape()));
        }
        let &[rows, columns] = ints(size)?.as_slice() else {
            return invalid(format!("shape_t must have two elements{}", size.shape()));
        };
        let shape = crate::args::shape_of(&[rows, columns, channels as i64])?;
        for (name, have, wanted) in [("width", width, columns), ("height", height, rows)] {
            if (have as i64) < wanted {
                return Err(Status::failed_precondition(format!(
                    "{name} must be >= target_{name}: {name} = {have}, target_{name} = {wanted}"
                )));
            }
        }
        ctx.check_alloc(image.dtype(), &shape)?;
        let mut words = Words::new(generator.reserve_words(2));
        // A direction with one place takes no number.
        let mut place = |have: usize, wanted: usize| match have - wanted {
            0 => 0,
            room => words.u32() as usize % (room + 1),
        };
        let left = place(width, columns as usize);
        let top = place(height, rows as usize);
        let out = part(image, (top, rows as usize), (left, columns as usize), shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Rows and columns of an image, each given by the first and their number.
fn part(
    image: &downpour_tensor::Tensor,
    (top, rows): (usize, usize),
    (left, columns): (usize, usize),
    shape: Shape,
) -> Result<downpour_tensor::Tensor> {
    let (width, channels) = (image.dims()[1], image.dims()[2]);
    let dtype = image.dtype();
    Ok(with_unit!(dtype, U => {
        let from = U::view(image)?;
        let mut out = Vec::with_capacity(shape.num_elements());
        for y in top..top + rows {
            let at = (y * width + left) * channels;
            out.extend_from_slice(&from[at..at + columns * channels]);
        }
        U::tensor(dtype, out, shape)?
    }))
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn a_crop_is_a_part_of_its_image() {
        let image: Vec<i32> = (0..5 * 6 * 2).collect();
        let attrs = [
            ("T", DType::Int32.into()),
            ("seed", 3i64.into()),
            ("seed2", 4i64.into()),
        ];
        let run = |size: [i64; 2]| {
            let image = Tensor::from_vec(image.clone(), [5, 6, 2]).unwrap();
            run_op(
                "RandomCrop",
                vec![image, Tensor::vector(size.to_vec())],
                &attrs,
            )
        };
        let out = run([2, 3]).unwrap().remove(0);
        let got = out.as_slice::<i32>().unwrap();
        let (top, left) = (got[0] as usize / 12, got[0] as usize % 12 / 2);
        assert!(top <= 3 && left <= 3);
        for (i, v) in got.iter().enumerate() {
            let (y, x, c) = (i / 6, i % 6 / 2, i % 2);
            assert_eq!(*v as usize, ((top + y) * 6 + left + x) * 2 + c);
        }
        assert_eq!(run([5, 6]).unwrap()[0].as_slice::<i32>().unwrap(), image);
        let e = run([2, 7]).unwrap_err();
        assert!(
            e.message
                .starts_with("width must be >= target_width: width = 6, target_width = 7")
        );
    }
}
