"""Findings that two rules come to: a group that some never create, messages with other tags; and
who listens where ranks wait, which only the supervisor can look up."""

from __future__ import annotations

from dataclasses import replace

from ..record.wording import RankState, at_site, printable, ranks_text, verb
from .facts.evidence import chosen, of_call, standing
from .facts.needs import Needs
from .facts.world import Pending, World
from .findings import Finding, RankEvidence, group_evidence


def evidence(
    world: World, links: list[Pending], first: list[int], others: tuple[int, ...]
) -> dict[int, RankEvidence]:
    """Returns the evidence of each rank; for those in `links`, the wait that matters here."""
    found = {rank: standing(world, rank) for rank in chosen(first, others)}
    for link in links:
        if link.rank in found and link.call is not None:
            found[link.rank] = of_call(RankState.WAITS_IN, link.call, link.site)
    return found


def not_created(
    needs: Needs,
    link: Pending,
    absent: tuple[int, ...],
    waiting: tuple[int, ...],
    ranks: dict[int, RankEvidence],
    observable_ns: int,
    *,
    proven: bool,
) -> Finding:
    """A group that some ranks create and wait for, and others will never create."""
    creation = needs.creation(link)
    members = creation.ranks if creation else tuple(link.wait.detail.get("ranks", ()))
    makers = tuple(rank for rank in waiting if rank in members) or (link.rank,)
    message = (
        f"{'' if proven else 'suspected: '}{ranks_text(makers)} "
        f"{verb(makers, 'creates', 'create')} a group of {ranks_text(members)}"
        f"{at_site(link.wait.site)}, but {ranks_text(absent)} {verb(absent, 'does', 'do')} not: "
        "all ranks must call new_group, in the same order"
    )
    return Finding(
        kind="group_mismatch",
        message=message,
        culprits=absent,
        victims=waiting,
        proven=proven,
        ranks=ranks,
        observable_ns=observable_ns,
        data={"index": creation.index if creation else None},
    )


def tag_mismatch(
    world: World,
    link: Pending,
    partner: int,
    tags: list[int],
    victims: tuple[int, ...],
    *,
    proven: bool,
) -> Finding:
    """The rank waits in a send or receive, while its partner has posted one with other tags."""
    call = link.call
    assert call is not None
    sending = call.signature.op == "send"
    pair = (link.rank, partner) if sending else (partner, link.rank)
    does, did = ("sends to", "receives from") if sending else ("receives from", "sends to")
    message = (
        f"{'' if proven else 'suspected: '}rank {link.rank} {does} rank {partner} with tag "
        f"{call.signature.tag}, but rank {partner} {did} rank {link.rank} with "
        f"tag {', '.join(map(str, tags[:8]))}"
    )
    view = world.view(link.rank, call.group)
    return Finding(
        kind="p2p_mismatch",
        message=message,
        culprits=pair,
        victims=tuple(rank for rank in victims if rank not in pair),
        proven=proven,
        group=group_evidence(view.any) if view else None,
        seq=call.seq,
        ranks=evidence(world, [link], list(pair), victims),
        observable_ns=link.wait.since_ns,
    )


def heard_at(finding: Finding, address: str, holder: str) -> Finding:
    """The finding with who listens at the address that it is about; `holder` is "" for nobody."""
    if finding.kind == "stalled":
        held = f"{address} is held by {holder}: if that is no store, ranks wait for ever"
        free = f"nobody listens at {address}"
    else:
        held = f"{address} is held by {holder}"
        free = f"nobody listens at {address} any more"
    return replace(
        finding,
        details=(printable(held if holder else free), *finding.details),
        data={**finding.data, "holder": printable(holder)},
    )
