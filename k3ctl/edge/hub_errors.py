"""A hub's refusals in plain words: what huggingface_hub raises becomes an error of k3ctl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from k3ctl.errors import ConfigError, K3ctlError, PhaseFailed, Problem


@contextmanager
def explained(endpoint: str, repo: str, revision: str, *, has_token: bool) -> Iterator[None]:
    """Turn the library's errors into ours, in plain words."""
    try:
        yield
    except K3ctlError:
        raise
    except Exception as error:
        ours = explain(error, endpoint, repo, revision, has_token=has_token)
        if ours is None:
            raise
        raise ours from error


def explain(error: Exception, endpoint: str, repo: str, revision: str, *, has_token: bool) -> K3ctlError | None:
    """The error in our words; None when it is not one that a hub or the way to it can cause."""
    for kind, words in _REASONS:
        if isinstance(error, kind):
            return words(_Asked(endpoint, repo, revision, has_token), error)
    # Errors of the way there are classes of httpx (library 1.x) or httpx2 (2.x); neither is ours to import.
    if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore") or isinstance(error, OSError):
        return PhaseFailed(
            Problem(
                what=f"the hub {endpoint} does not answer",
                found=f"{type(error).__name__}: {error}",
                expected="an HTTP answer (the library tried several times)",
                fix="check weights.endpoint in cluster.yml, name resolution, proxy and firewall of this machine",
            )
        )
    return None


@dataclass(frozen=True)
class _Asked:
    endpoint: str
    repo: str
    revision: str
    has_token: bool


def _gated(asked: _Asked, error: Exception) -> K3ctlError:
    return ConfigError(
        Problem(
            what=f"{asked.repo} is gated: its terms were not accepted"
            + (", or the token may not read it" if asked.has_token else ", or no token is set"),
            found=_first_line(error),
            fix=f"accept the terms at {asked.endpoint}/{asked.repo}"
            + ("" if asked.has_token else " and set weights.token_file"),
        )
    )


def _no_repo(asked: _Asked, error: Exception) -> K3ctlError:
    if _status(error) == 401 and asked.has_token:
        return _refused(asked, error)
    return ConfigError(
        Problem(
            what=f"repository {asked.repo} is not found at {asked.endpoint}"
            + ("" if asked.has_token else ", or needs a token (the hub does not say which)"),
            found=_first_line(error),
            fix="check the name"
            + ("; the token may not see this repository" if asked.has_token else "; set weights.token_file"),
        )
    )


def _no_revision(asked: _Asked, error: Exception) -> K3ctlError:
    return ConfigError(
        Problem(
            what=f"{asked.repo} has no revision {asked.revision}",
            found=_first_line(error),
            expected="a commit of this repository",
            fix="check weights.revision in cluster.yml or the model's profile",
        )
    )


def _no_file(asked: _Asked, error: Exception) -> K3ctlError:
    return PhaseFailed(
        Problem(what=f"{asked.endpoint} lists a file of {asked.repo} that it does not serve", found=_first_line(error))
    )


def _disabled(asked: _Asked, error: Exception) -> K3ctlError:
    return PhaseFailed(Problem(what=f"{asked.repo} is disabled at {asked.endpoint}", found=_first_line(error)))


def _offline(asked: _Asked, error: Exception) -> K3ctlError:
    return ConfigError(
        Problem(
            what=f"HF_HUB_OFFLINE is set here, so the listing of {asked.repo} cannot be asked for",
            found=_first_line(error),
            fix="unset HF_HUB_OFFLINE for this command",
        )
    )


def _bad_name(asked: _Asked, error: Exception) -> K3ctlError:
    return ConfigError(Problem(what=f"{asked.repo!r} is not the name of a repository", found=_first_line(error)))


def _refused(asked: _Asked, error: Exception) -> K3ctlError:
    return ConfigError(
        Problem(
            what=f"the token is refused by {asked.endpoint}",
            found=_first_line(error),
            fix="make a new token with read access and put it into the file of weights.token_file",
        )
    )


def _status(error: Exception) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _by_status(asked: _Asked, error: Exception) -> K3ctlError:
    """Answers without a class of their own."""
    status = _status(error)
    if status == 401:
        return _refused(asked, error) if asked.has_token else _no_repo(asked, error)
    if status == 429:
        wait = getattr(error, "response").headers.get("Retry-After", "a while")  # noqa: B009
        return PhaseFailed(
            Problem(
                what=f"{asked.endpoint} limits the rate of requests (429), after several tries",
                found=_first_line(error),
                fix=f"wait {wait} s and run again" + ("" if asked.has_token else "; a token has a higher limit"),
            )
        )
    if status in (403, 451):
        body = str(getattr(getattr(error, "response", None), "text", ""))[:200]
        return PhaseFailed(
            Problem(
                what=f"{asked.endpoint} or a proxy before it forbids {asked.repo} ({status})",
                found=_first_line(error),
                evidence=body,
            )
        )
    return PhaseFailed(
        Problem(
            what=f"{asked.endpoint} answered {status} for {asked.repo}, after several tries", found=_first_line(error)
        )
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# In this order: GatedRepoError is a RepositoryNotFoundError, and all of them are HfHubHTTPErrors.
_REASONS: tuple[tuple[type[Exception], Callable[[_Asked, Exception], K3ctlError]], ...] = (
    (GatedRepoError, _gated),
    (RepositoryNotFoundError, _no_repo),
    (RevisionNotFoundError, _no_revision),
    (DisabledRepoError, _disabled),
    (EntryNotFoundError, _no_file),
    (OfflineModeIsEnabled, _offline),
    (HFValidationError, _bad_name),
    (HfHubHTTPError, _by_status),
)
