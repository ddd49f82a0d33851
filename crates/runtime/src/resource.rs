//! Named objects that outlive a step: variables, queues, tables, readers. Keyed as TensorFlow
//! keys them, by container, type and name; the default container is the device's job name.

use crate::memory::Held;
use crate::variable::{Variable, VariableFacts};
use downpour_graph::{Result, Status};
use downpour_tensor::{ResourceHandle, Tensor};
use parking_lot::Mutex;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Something a resource manager may hold.
pub trait Resource: Any + Send + Sync {
    /// The name of TensorFlow's C++ type, which error texts show.
    fn type_name(&self) -> &'static str;

    /// The variable that this is, if it is one.
    fn variable(&self) -> Option<&Variable> {
        None
    }

    /// What memory it keeps, if that is worth knowing. Must not wait: whoever asks may hold any lock.
    fn held(&self) -> Option<Held> {
        None
    }
}

type Slot = (Arc<dyn Any + Send + Sync>, &'static str, Look);
/// Sees a resource as what it is.
type Look = fn(&(dyn Any + Send + Sync)) -> Option<&dyn Resource>;

fn look<R: Resource>(resource: &(dyn Any + Send + Sync)) -> Option<&dyn Resource> {
    let resource: &dyn Resource = resource.downcast_ref::<R>()?;
    Some(resource)
}

type Container = HashMap<String, Vec<(TypeId, Slot)>>;

/// Containers of named resources.
pub struct ResourceManager {
    containers: Mutex<HashMap<String, Container>>,
    /// Which resources can be found: another number, that no manager of the process has had, whenever one no longer can.
    version: AtomicU64,
}

impl Default for ResourceManager {
    fn default() -> ResourceManager {
        ResourceManager {
            containers: Mutex::default(),
            version: AtomicU64::new(next_version()),
        }
    }
}

fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl ResourceManager {
    /// An empty manager.
    pub fn new() -> ResourceManager {
        ResourceManager::default()
    }

    /// A resource is about to be taken out. Said under the lock.
    fn changes(&self) {
        self.version.store(next_version(), Ordering::Release);
    }

    /// The `R` called `name`, if it exists.
    pub fn find<R: Resource>(&self, container: &str, name: &str) -> Option<Arc<R>> {
        let containers = self.containers.lock();
        find_in::<R>(containers.get(container)?, name)
    }

    /// The `R` called `name`, or TensorFlow's NOT_FOUND.
    pub fn lookup<R: Resource>(&self, container: &str, name: &str) -> Result<Arc<R>> {
        self.find(container, name).ok_or_else(|| {
            Status::not_found(format!(
                "Resource {container}/{name}/{} does not exist.",
                std::any::type_name::<R>()
                    .rsplit("::")
                    .next()
                    .unwrap_or_default()
            ))
        })
    }

    /// TensorFlow's NOT_FOUND for a resource that is not here; `type_name` is its C++ type.
    pub fn not_found(&self, container: &str, name: &str, type_name: &str) -> Status {
        Status::not_found(if self.containers.lock().contains_key(container) {
            format!("Resource {container}/{name}/{type_name} does not exist.")
        } else {
            format!(
                "Container {container} does not exist. (Could not find resource: {container}/{name})"
            )
        })
    }

    /// The `R` called `name`; made by `create` if it does not exist. `create` runs under the
    /// manager's lock and must not call back into it.
    pub fn find_or_create<R: Resource>(
        &self,
        container: &str,
        name: &str,
        create: impl FnOnce() -> Result<R>,
    ) -> Result<Arc<R>> {
        let mut containers = self.containers.lock();
        let inside = containers.entry(container.to_owned()).or_default();
        if let Some(found) = find_in::<R>(inside, name) {
            return Ok(found);
        }
        let made = Arc::new(create()?);
        let slot: Slot = (made.clone(), made.type_name(), look::<R>);
        inside
            .entry(name.to_owned())
            .or_default()
            .push((TypeId::of::<R>(), slot));
        Ok(made)
    }

    /// Puts a resource in place of any of the same type and name.
    pub fn insert<R: Resource>(&self, container: &str, name: &str, resource: Arc<R>) {
        let mut containers = self.containers.lock();
        let slots = containers
            .entry(container.to_owned())
            .or_default()
            .entry(name.to_owned())
            .or_default();
        self.changes();
        slots.retain(|(id, _)| *id != TypeId::of::<R>());
        let type_name = resource.type_name();
        slots.push((TypeId::of::<R>(), (resource, type_name, look::<R>)));
    }

    /// Removes the `R` called `name`; `false` if there was none.
    pub fn remove<R: Resource>(&self, container: &str, name: &str) -> bool {
        let mut containers = self.containers.lock();
        let Some(inside) = containers.get_mut(container) else {
            return false;
        };
        let Some(slots) = inside.get_mut(name) else {
            return false;
        };
        let before = slots.len();
        self.changes();
        slots.retain(|(id, _)| *id != TypeId::of::<R>());
        let removed = slots.len() < before;
        if slots.is_empty() {
            inside.remove(name);
        }
        removed
    }

    /// Removes whatever is called `name`, of any type; `false` if there was nothing.
    pub fn remove_any(&self, container: &str, name: &str) -> bool {
        let mut containers = self.containers.lock();
        self.changes();
        containers
            .get_mut(container)
            .is_some_and(|inside| inside.remove(name).is_some())
    }

    /// Drops everything in a container.
    pub fn clear(&self, container: &str) {
        let dropped = {
            let mut containers = self.containers.lock();
            self.changes();
            containers.remove(container)
        };
        // Destructors run outside the lock: a queue's may cancel waiters that look things up.
        drop(dropped);
    }

    /// Containers, names and TensorFlow type names of everything held.
    pub fn list(&self) -> Vec<(String, String, &'static str)> {
        let containers = self.containers.lock();
        let mut out: Vec<_> = containers
            .iter()
            .flat_map(|(c, inside)| {
                inside.iter().flat_map(move |(n, slots)| {
                    slots
                        .iter()
                        .map(move |(_, (_, t, _))| (c.clone(), n.clone(), *t))
                })
            })
            .collect();
        out.sort();
        out
    }

    /// Names of everything that keeps memory, and how much. Empty while somebody adds or removes something.
    pub(crate) fn held(&self) -> Vec<(String, Held)> {
        let Some(containers) = self.containers.try_lock() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, slots) in containers.values().flatten() {
            for (_, (resource, _, look)) in slots {
                if let Some(held) = look(&**resource).and_then(Resource::held) {
                    found.push((name.clone(), held));
                }
            }
        }
        found
    }

    /// Containers, names and facts of every variable, in the order of their names.
    pub fn variables(&self) -> Vec<(String, String, VariableFacts)> {
        let mut found = Vec::new();
        for (container, inside) in self.containers.lock().iter() {
            for (name, slots) in inside {
                for (_, (resource, _, look)) in slots {
                    if look(&**resource).is_some_and(|r| r.variable().is_some()) {
                        let resource = resource.clone();
                        found.push((container.clone(), name.clone(), resource, *look));
                    }
                }
            }
        }
        // Asked outside the lock: an update may hold a variable for long.
        let facts = found
            .into_iter()
            .filter_map(|(container, name, resource, look)| {
                let facts = look(&*resource)?.variable()?.facts();
                Some((container, name, facts))
            });
        let mut facts: Vec<_> = facts.collect();
        facts.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        facts
    }
}

/// The resource that a kernel found the last time: the next step need not look it up by name. Found again only for the
/// same handle, and while no resource was taken out of the manager meanwhile.
pub struct LastFound<R>(Mutex<Option<Found<R>>>);

struct Found<R> {
    version: u64,
    /// Kept, so that no other handle can lie where it lies.
    handle: Tensor,
    resource: Weak<R>,
}

impl<R> Default for LastFound<R> {
    fn default() -> LastFound<R> {
        LastFound(Mutex::default())
    }
}

impl<R: Resource> LastFound<R> {
    /// The `R` that `handle` names in `resources`, if there is one.
    pub fn find(&self, resources: &ResourceManager, handle: &Tensor) -> Option<Arc<R>> {
        let named = handle.as_resources().ok()?.first()?;
        // What is taken out from here on changes the number.
        let version = resources.version.load(Ordering::Acquire);
        let mut last = self.0.lock();
        if let Some(last) = &*last
            && last.version == version
            && is_same(&last.handle, named)
        {
            return last.resource.upgrade();
        }
        let found = resources.find::<R>(&named.container, &named.name)?;
        *last = Some(Found {
            version,
            handle: handle.clone(),
            resource: Arc::downgrade(&found),
        });
        Some(found)
    }
}

/// Whether it is that very handle, not one of the same name.
fn is_same(kept: &Tensor, handle: &ResourceHandle) -> bool {
    let kept = kept.as_resources().ok().and_then(<[_]>::first);
    kept.is_some_and(|kept| std::ptr::eq(kept, handle))
}

fn find_in<R: Resource>(container: &Container, name: &str) -> Option<Arc<R>> {
    let (_, (found, ..)) = container
        .get(name)?
        .iter()
        .find(|(id, _)| *id == TypeId::of::<R>())?;
    found.clone().downcast().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancellation, Device, Extensions, MemoryBudget, Staleness, StepEnv};
    use downpour_tensor::Tensor;

    #[test]
    fn what_was_found_last_is_found_until_it_is_taken_out() {
        let (m, other) = (ResourceManager::new(), ResourceManager::new());
        let handle = |name: &str| {
            Tensor::resource(ResourceHandle {
                container: "ps".into(),
                name: name.into(),
                ..ResourceHandle::default()
            })
        };
        let (v, w) = (handle("v"), handle("w"));
        let made = |m: &ResourceManager, name: &str| {
            m.find_or_create("ps", name, || Ok(Variable::new()))
                .unwrap()
        };
        let is = |found: Option<Arc<Variable>>, wanted: &Arc<Variable>| {
            assert!(found.is_some_and(|f| Arc::ptr_eq(&f, wanted)));
        };
        let last = LastFound::<Variable>::default();
        assert!(last.find(&m, &v).is_none());
        let first = made(&m, "v");
        for _ in 0..2 {
            is(last.find(&m, &v), &first);
        }
        // Another handle, another manager.
        let (second, third) = (made(&m, "w"), made(&other, "v"));
        is(last.find(&m, &w), &second);
        is(last.find(&other, &v), &third);
        is(last.find(&m, &v), &first);
        // Taken out in every way.
        let ways: [&dyn Fn(); 4] = [
            &|| assert!(m.remove::<Variable>("ps", "v")),
            &|| assert!(m.remove_any("ps", "v")),
            &|| m.clear("ps"),
            &|| m.insert("ps", "v", Arc::new(Variable::new())),
        ];
        for take_out in ways {
            let before = made(&m, "v");
            is(last.find(&m, &v), &before);
            take_out();
            let found = last.find(&m, &v);
            assert!(found.is_none_or(|f| !Arc::ptr_eq(&f, &before)));
            let after = made(&m, "v");
            is(last.find(&m, &v), &after);
        }
    }

    #[test]
    fn resources_are_shared_by_container_and_name() {
        let m = ResourceManager::new();
        let made = || Ok(Variable::with_value(Tensor::scalar(1.0f32)));
        let a = m.find_or_create("ps", "v", made).unwrap();
        let b = m.find_or_create("ps", "v", || Ok(Variable::new())).unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert!(m.find::<Variable>("other", "v").is_none());
        assert!(
            m.lookup::<Variable>("ps", "w")
                .unwrap_err()
                .message
                .contains("ps/w/Variable")
        );
        assert_eq!(
            m.not_found("ps", "w", "T").message,
            "Resource ps/w/T does not exist."
        );
        assert_eq!(
            m.not_found("x", "w", "T").message,
            "Container x does not exist. (Could not find resource: x/w)"
        );
        assert_eq!(m.list(), [("ps".into(), "v".into(), "N10tensorflow3VarE")]);
        a.read_by(7);
        let memory = MemoryBudget::per_tensor(8);
        let device = Device::cpu("".into(), "ps", 1, 1, memory, Extensions::default());
        let mut env = StepEnv::new(7, Arc::new(device), Cancellation::new());
        let writer = Arc::new(Staleness::default());
        env.writer = Some(writer.clone());
        a.note_update(&env);
        assert_eq!(writer.facts().updates(), 1);
        let [(container, name, facts)] = &m.variables()[..] else {
            panic!("{:?}", m.variables());
        };
        assert_eq!((container.as_str(), name.as_str()), ("ps", "v"));
        assert_eq!((facts.updates, facts.staleness.counts[0]), (1, 1));
        assert!(facts.is_initialized && facts.bytes == 4);
        m.clear("ps");
        assert!(m.find::<Variable>("ps", "v").is_none());
        assert!(!m.remove::<Variable>("ps", "v"));
    }
}
