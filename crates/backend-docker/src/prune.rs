//! Which prepared images are of no use any more. Each is as large as the belljar binary, and keeps the image that it was
//! made from from being removed.
//!
//! A daemon may serve several users and several versions of Belljar, none of which knows of the others. So an image is
//! removed at once only if it is certain that nothing will look for it, and after a week if that is likely: if it is
//! needed after all, it is made again.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::api::{Api, ApiError, escaped};
use crate::image::{BARE, Images};

/// The labels of a prepared image: what it was made from, the package that was added, and the binary that made it.
const FROM: &str = "dev.belljar.prepared";
const PACKAGE: &str = "dev.belljar.package";
const BINARY: &str = "dev.belljar.binary";
/// After this time, an image that is probably not needed is removed.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// An image in the daemon's list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Listed {
    id: String,
    repo_tags: Option<Vec<String>>,
    repo_digests: Option<Vec<String>>,
    labels: Option<HashMap<String, String>>,
    created: u64,
}

/// The image from which another was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Tagged,
    /// Its tag has moved on to another image, but it can be named by its digest.
    Untagged,
    Gone,
}

/// The binary that prepared an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// This one, which will look for it.
    This,
    /// One that this one has replaced.
    Predecessor,
    /// One at another path, or an unknown one.
    Another,
}

impl Images {
    /// The labels of an image that this binary prepares.
    pub(crate) fn labels(&self, from: &str, package: Option<&str>) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            (FROM, from.to_owned()),
            (PACKAGE, package.unwrap_or_default().to_owned()),
            (BINARY, self.binary().unwrap_or_default()),
        ])
    }

    /// Removes the prepared images that are of no use any more. Returns how many.
    pub(crate) async fn prune(&self, api: &Api) -> Result<u64, ApiError> {
        let filters = escaped(&json!({ "label": [FROM] }).to_string());
        let prepared: Vec<Listed> = api.get(&format!("/images/json?filters={filters}")).await?;
        let all: Vec<Listed> = api.get("/images/json").await?;
        let bases: HashMap<&str, Base> = all.iter().map(|image| (image.id.as_str(), image.base())).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut removed = 0;
        for image in prepared {
            let from = image.label(FROM);
            let base = if from == BARE { Base::Tagged } else { *bases.get(from).unwrap_or(&Base::Gone) };
            let age = now.saturating_sub(Duration::from_secs(image.created));
            if is_useless(base, self.maker(&image), age) && remove(api, &image).await? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn maker(&self, image: &Listed) -> Maker {
        let package = Some(image.label(PACKAGE)).filter(|package| !package.is_empty());
        let ours = self.prepared_name(image.label(FROM), package).ok();
        if ours.is_some_and(|ours| image.tags().any(|tag| *tag == ours)) {
            return Maker::This;
        }
        let binary = image.label(BINARY);
        let same_path = !binary.is_empty() && self.binary().is_some_and(|ours| ours == binary);
        if same_path { Maker::Predecessor } else { Maker::Another }
    }

    /// The path of this binary. One that was replaced while it runs has another name in /proc, and is another one.
    fn binary(&self) -> Option<String> {
        let path = std::fs::read_link(&self.init).ok()?;
        Some(path.to_str()?.to_owned())
    }
}

impl Listed {
    fn label(&self, name: &str) -> &str {
        self.labels.as_ref().and_then(|labels| labels.get(name)).map_or("", String::as_str)
    }

    /// Docker lists an image without a tag as `<none>:<none>`.
    fn tags(&self) -> impl Iterator<Item = &String> {
        self.repo_tags.iter().flatten().filter(|tag| !tag.starts_with('<'))
    }

    fn base(&self) -> Base {
        let by_digest = self.repo_digests.iter().flatten().any(|digest| !digest.starts_with('<'));
        match self.tags().next() {
            Some(_) => Base::Tagged,
            None if by_digest => Base::Untagged,
            None => Base::Gone,
        }
    }
}

fn is_useless(base: Base, maker: Maker, age: Duration) -> bool {
    match (base, maker) {
        (Base::Gone, _) | (_, Maker::Predecessor) => true,
        (Base::Tagged, Maker::This) => false,
        (Base::Untagged, _) | (_, Maker::Another) => age > KEPT,
    }
}

/// Removes an image, unless a container uses it.
async fn remove(api: &Api, image: &Listed) -> Result<bool, ApiError> {
    let name = image.tags().next().unwrap_or(&image.id);
    match api.delete(&format!("/images/{}", escaped(name))).await {
        Ok(()) => Ok(true),
        Err(error) if error.is(StatusCode::CONFLICT) || error.is(StatusCode::NOT_FOUND) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_will_be_looked_for_is_kept_however_old_it_is() {
        assert!(!is_useless(Base::Tagged, Maker::This, 1000 * KEPT));
    }

    #[test]
    fn what_nothing_looks_for_goes_at_once() {
        assert!(is_useless(Base::Gone, Maker::This, HOUR) && is_useless(Base::Gone, Maker::Another, HOUR));
        assert!(is_useless(Base::Tagged, Maker::Predecessor, HOUR));
    }

    #[test]
    fn what_somebody_else_may_look_for_goes_after_a_week() {
        for (base, maker) in [(Base::Tagged, Maker::Another), (Base::Untagged, Maker::This)] {
            assert!(!is_useless(base, maker, HOUR) && is_useless(base, maker, KEPT + HOUR), "{base:?}");
        }
    }

    #[test]
    fn an_image_without_a_tag_can_be_named_only_by_its_digest() {
        let base = |tag: &str, digest: &str| {
            Listed {
                repo_tags: Some(vec![tag.to_owned()]),
                repo_digests: Some(vec![digest.to_owned()]),
                ..Listed::default()
            }
            .base()
        };
        assert_eq!(base("a:1", "<none>@<none>"), Base::Tagged);
        assert_eq!(base("<none>:<none>", "a@sha256:1"), Base::Untagged);
        assert_eq!(base("<none>:<none>", "<none>@<none>"), Base::Gone);
    }
}
