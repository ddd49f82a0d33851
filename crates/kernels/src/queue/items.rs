//! The elements of a queue and the order in which they leave it.

use crate::random::philox::{Philox, Words};
use downpour_tensor::Tensor;
use downpour_tensor::account::{Holding, Refused};
use std::collections::VecDeque;

/// One element: a tensor for each component.
pub(crate) type Element = Vec<Tensor>;

/// A store of elements.
pub(crate) enum Items {
    /// First in, first out.
    Fifo(VecDeque<Element>),
    /// Any element, drawn by a seeded generator.
    Shuffle(Vec<Element>, Box<Words>),
    /// The smallest priority first.
    Priority(Heap),
}

impl Items {
    /// A store that shuffles by these seeds.
    pub(crate) fn shuffle(seed: u64, seed2: u64) -> Items {
        Items::Shuffle(
            Vec::new(),
            Box::new(Words::new(Philox::from_seeds(seed, seed2))),
        )
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Items::Fifo(items) => items.len(),
            Items::Shuffle(items, _) => items.len(),
            Items::Priority(heap) => heap.0.len(),
        }
    }

    /// Adds an element.
    pub(crate) fn push(&mut self, element: Element) {
        match self {
            Items::Fifo(items) => items.push_back(element),
            Items::Shuffle(items, _) => items.push(element),
            Items::Priority(heap) => heap.push(element),
        }
    }

    /// Takes the next element.
    pub(crate) fn pop(&mut self) -> Option<Element> {
        match self {
            Items::Fifo(items) => items.pop_front(),
            Items::Shuffle(items, _) if items.is_empty() => None,
            Items::Shuffle(items, words) => {
                let at = words.u32() as usize % items.len();
                Some(items.swap_remove(at))
            }
            Items::Priority(heap) => heap.pop(),
        }
    }

    /// Puts elements back that were taken in this order.
    pub(crate) fn restore(&mut self, elements: Vec<Element>) {
        for element in elements.into_iter().rev() {
            match self {
                Items::Fifo(items) => items.push_front(element),
                _ => self.push(element),
            }
        }
    }
}

/// The elements of a queue, and what they take.
pub(crate) struct Store {
    items: Items,
    /// Bytes of elements that nobody else counts.
    held: Holding,
    /// Bytes of all elements.
    bytes: usize,
}

impl Store {
    /// An empty store, charged to the calling thread's session.
    pub(crate) fn new(items: Items) -> Store {
        Store {
            items,
            held: Holding::new(),
            bytes: 0,
        }
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// How many bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an element, if there is memory for it.
    pub(crate) fn push(&mut self, element: Element) -> Result<(), Refused> {
        self.held.add(uncounted(&element))?;
        self.bytes += bytes(&element);
        self.items.push(element);
        Ok(())
    }

    /// Takes the next element.
    pub(crate) fn pop(&mut self) -> Option<Element> {
        let element = self.items.pop()?;
        self.held.sub(uncounted(&element));
        self.bytes -= bytes(&element).min(self.bytes);
        Some(element)
    }

    /// Puts elements back that were taken in this order: they have been here before.
    pub(crate) fn restore(&mut self, elements: Vec<Element>) {
        let back: usize = elements.iter().map(uncounted).sum();
        self.held.set(self.held.bytes() + back);
        self.bytes += elements.iter().map(bytes).sum::<usize>();
        self.items.restore(elements);
    }
}

fn uncounted(element: &Element) -> usize {
    size_of::<Element>() + element.iter().map(Tensor::uncounted).sum::<usize>()
}

fn bytes(element: &Element) -> usize {
    size_of::<Element>() + element.iter().map(Tensor::byte_len).sum::<usize>()
}

/// A binary heap that orders equal priorities as the standard library TensorFlow is built with
/// does: clients see that order.
#[derive(Default)]
pub(crate) struct Heap(Vec<(i64, Element)>);

impl Heap {
    fn push(&mut self, element: Element) {
        let priority = element
            .first()
            .and_then(|t| t.scalar_value().ok())
            .unwrap_or_default();
        self.0.push((priority, element));
        self.rise(self.0.len() - 1);
    }

    /// Moves the element at `at` towards the root while its parent has a larger priority.
    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.0[parent].0 <= self.0[at].0 {
                break;
            }
            self.0.swap(parent, at);
            at = parent;
        }
    }

    fn pop(&mut self) -> Option<Element> {
        let last = self.0.len().checked_sub(1)?;
        self.0.swap(0, last);
        let (_, element) = self.0.pop()?;
        // The element from the end sinks to a leaf along the smaller children (the right one of
        // equals), and rises from there.
        let (len, mut hole) = (self.0.len(), 0);
        loop {
            let right = 2 * hole + 2;
            let child = if right < len {
                if self.0[right].0 > self.0[right - 1].0 {
                    right - 1
                } else {
                    right
                }
            } else if right - 1 < len {
                right - 1
            } else {
                break;
            };
            self.0.swap(hole, child);
            hole = child;
        }
        if len > 0 {
            self.rise(hole);
        }
        Some(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(priority: i64, value: i32) -> Element {
        vec![Tensor::scalar(priority), Tensor::scalar(value)]
    }

    fn drain(items: &mut Items, component: usize) -> Vec<i32> {
        std::iter::from_fn(|| items.pop())
            .map(|e| e[component].scalar_value().unwrap())
            .collect()
    }

    #[test]
    fn equal_priorities_leave_in_the_order_of_tensorflow() {
        let mut items = Items::Priority(Heap::default());
        for (i, p) in [3, 1, 3, 1, 2, 1, 1, 3, 2].into_iter().enumerate() {
            items.push(item(p, i as i32));
        }
        assert_eq!(drain(&mut items, 1), EQUAL_PRIORITIES);
    }

    /// From TensorFlow 2.21.
    const EQUAL_PRIORITIES: [i32; 9] = [1, 5, 6, 3, 4, 8, 0, 2, 7];

    #[test]
    fn seeds_shuffle_as_in_tensorflow() {
        let mut items = Items::shuffle(1, 2);
        for i in 0..10 {
            items.push(vec![Tensor::scalar(i)]);
        }
        assert_eq!(drain(&mut items, 0)[..7], [9, 8, 6, 3, 5, 1, 4]);
    }

    #[test]
    fn restored_elements_come_first_again() {
        let mut items = Items::Fifo(VecDeque::new());
        for i in 0..4 {
            items.push(vec![Tensor::scalar(i)]);
        }
        let taken = vec![items.pop().unwrap(), items.pop().unwrap()];
        items.restore(taken);
        assert_eq!(drain(&mut items, 0), [0, 1, 2, 3]);
    }
}
