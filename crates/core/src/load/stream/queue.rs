//! Finished tensors that the caller has not taken yet, in the requested order.

use std::collections::{BTreeMap, VecDeque};

use crate::options::Order;

/// Queue of finished tensors. Generic so that tests need no tensors.
pub(super) struct FinishedQueue<T> {
    order: Order,
    /// The caller takes them from the front.
    ready: VecDeque<T>,
    /// File order: tensors that completed before their turn, by index.
    early: BTreeMap<usize, T>,
    /// File order: index of the next tensor.
    turn: usize,
}

impl<T> FinishedQueue<T> {
    pub(super) fn new(order: Order) -> Self {
        Self {
            order,
            ready: VecDeque::new(),
            early: BTreeMap::new(),
            turn: 0,
        }
    }

    /// Adds tensors with their indices.
    pub(super) fn extend(&mut self, finished: impl Iterator<Item = (usize, T)>) {
        match self.order {
            Order::Ready => self.ready.extend(finished.map(|(_, tensor)| tensor)),
            Order::File => {
                self.early.extend(finished);
                while let Some(tensor) = self.early.remove(&self.turn) {
                    self.ready.push_back(tensor);
                    self.turn += 1;
                }
            }
        }
    }

    /// Returns whether there is no tensor to take.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Takes the next tensor.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Takes all tensors, for the caller to drop.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(order: Order, finished: &[&[usize]]) -> Vec<Vec<usize>> {
        let mut queue = FinishedQueue::new(order);
        let mut take = |indices: &&[usize]| {
            queue.extend(indices.iter().map(|index| (*index, *index)));
            std::iter::from_fn(|| queue.pop()).collect()
        };
        finished.iter().map(&mut take).collect()
    }

    #[test]
    fn file_order_holds_back_tensors_before_their_turn() {
        let finished: [&[usize]; 3] = [&[1, 3], &[0], &[2]];
        assert_eq!(
            taken(Order::File, &finished),
            [vec![], vec![0, 1], vec![2, 3]]
        );
        assert_eq!(
            taken(Order::Ready, &finished),
            [vec![1, 3], vec![0], vec![2]]
        );
    }
}
