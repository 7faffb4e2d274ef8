"""Colours and the style sheet of all pages.

Every colour keeps a contrast of 3 to 1 against both backgrounds, and neighbouring ones are
distinguishable with any of the common colour deficiencies (a test computes both). They are for
marks; text has the theme's colour and a contrast of 4.5 to 1, on charts too. Nothing is shown by
colour alone: a word or a position says it too. Nothing greys out while a page refreshes: what is
drawn stays until the new is there. Charts are drawn from the top of a page to its end.
"""

LIGHT_BACKGROUND = "#FFFFFF"
DARK_BACKGROUND = "#0F171D"

BLUE = "#2E6BE0"
ORANGE = "#B85F0A"
TEAL = "#14A374"
PURPLE = "#CC72C2"
GREY = "#666E77"
STRONG = "#2459C4"
"""Under white text."""
FAINT = "#8A939C22"
"""Where a tile is as good as empty, on light and on dark."""
SERIES = (BLUE, ORANGE, TEAL, PURPLE, GREY)

ACCOUNTS = {"trained_policy": BLUE, "ready": TEAL, "in_flight": GREY, "dropped": ORANGE}
"""Where response tokens are."""
ACTIVITIES = {
    "working": BLUE,
    "loading": PURPLE,
    "held": ORANGE,
    "waiting": GREY,
    "evaluation": TEAL,
    "starting, ending": "#806040",
}
"""What a process does."""
STATUSES = {
    "training": TEAL,
    "finished": BLUE,
    "failed": ORANGE,
    "lost": ORANGE,
    "interrupted": ORANGE,
    "stopped": ORANGE,
}
"""How a run stands; anything else is grey."""


def tint(colour: str, alpha: float) -> str:
    """A palette colour as CSS with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:.2f})"


TURN_MS = 200
"""After how long a page's third row of charts is drawn; each further row so much later."""
_LAST_ROW = 9


def _in_turn() -> str:
    """Charts from the top of a page to its end. The browser takes most of a second for twenty
    charts, and shows none of them before it has drawn them all, unless the lower ones have no width
    yet: without one Streamlit does not begin to draw them. Their height is kept free."""
    row = "[data-testid=stLayoutWrapper]:has(>.stHorizontalBlock)"
    rows = "\n".join(
        f":nth-child(n+{n} of {row}) {{--turn:{TURN_MS * (n - 2)}ms}}"
        for n in range(3, _LAST_ROW + 1)
    )
    return f"""@keyframes hr-turn {{from {{width:0;min-height:15rem}}}}
{rows}
[data-testid="stVegaLiteChart"] {{animation:hr-turn var(--turn,0s) step-end}}"""


STYLE = f"""<style>
{_in_turn()}
.hr-line {{display:flex;flex-wrap:wrap;align-items:center;gap:.35rem .8rem;
  font-variant-numeric:tabular-nums}}
.hr-line h1 {{font-size:1.7rem;font-weight:650;padding:0;margin:0;letter-spacing:-.01em}}
.hr-card {{font-size:1rem;font-weight:650;padding:0;margin:0}}
.hr-section {{font-size:1.3rem;font-weight:650;padding:.6rem 0 0;margin:0}}
.hr-note {{float:right}}
.hr-run {{font-size:1.02rem;font-weight:600;opacity:.85;overflow-wrap:anywhere}}
.hr-pill {{display:inline-flex;align-items:center;gap:.45em;border:1px solid;
  border-radius:99px;padding:.08em .75em;font-size:.86rem;font-weight:600}}
.hr-pill i {{width:.55em;height:.55em;border-radius:50%}}
.hr-pill.live i {{animation:hr-beat 1.6s ease-in-out infinite}}
@keyframes hr-beat {{50% {{opacity:.25}}}}
@media (prefers-reduced-motion:reduce) {{.hr-pill.live i {{animation:none}}}}
.hr-soft {{opacity:.72;font-size:.9rem}}
.hr-caption {{opacity:.72;font-size:.875rem;margin:0 0 .4rem}}
.hr-sum {{display:flex;flex-wrap:wrap;align-items:stretch;gap:.2rem .9rem;
  font-variant-numeric:tabular-nums}}
.hr-sum > div {{min-width:5.5rem}}
.hr-sum b {{display:block;font-size:1.35rem;font-weight:600;line-height:1.25}}
.hr-sum span {{font-size:.84rem;opacity:.8;white-space:nowrap}}
.hr-sum .op {{min-width:0;font-size:1.25rem;opacity:.45;align-self:flex-start;line-height:1.4}}
.hr-figures {{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.8rem}}
.hr-figures b {{display:block;font-size:2.1rem;font-weight:400;line-height:1.3}}
.hr-figures span {{font-size:.875rem}}
.hr-figures b + span {{opacity:.72}}
.hr-table {{width:100%;border-collapse:collapse;font-size:.84rem}}
.hr-table :is(td,th) {{text-align:left;padding:.3rem .5em .3rem 0;border-bottom:1px solid {FAINT}}}
.hr-reasons {{font-variant-numeric:tabular-nums;display:grid;gap:.55rem}}
.hr-reason {{display:grid;grid-template-columns:9.5rem 5.5rem 4.2rem minmax(5rem,1fr) 3fr;
  gap:.2rem .9rem;align-items:center}}
.hr-reason > span {{text-align:right}}
.hr-reason > i {{height:12px;border-radius:6px;background:rgba(125,139,151,.16);overflow:hidden}}
.hr-reason > i > i {{display:block;height:100%;min-width:2px}}
.hr-reason em {{font-style:normal;font-size:.88rem;opacity:.78}}
@media (max-width:900px) {{.hr-reason {{grid-template-columns:1fr auto auto}}
  .hr-reason > i, .hr-reason em {{grid-column:1/-1}}}}
.hr-dot {{display:inline-block;width:.68em;height:.68em;border-radius:.2em;margin-right:.4em}}
.hr-bar {{display:flex;height:14px;border-radius:7px;overflow:hidden;gap:2px;margin:.7rem 0 .55rem;
  background:rgba(125,139,151,.16)}}
.hr-bar i {{display:block;min-width:2px}}
.hr-ok, .hr-bad {{font-weight:600}}
.hr-ok::before, .hr-bad::before {{content:"";display:inline-block;width:.62em;height:.62em;
  border-radius:50%;margin-right:.45em;background:{TEAL}}}
.hr-bad::before {{background:{ORANGE};border-radius:0}}
.hr-warns {{font-weight:700;border-left:3px solid {ORANGE};padding-left:.35em}}
[data-testid="stCaptionContainer"] code {{color:inherit}}
.stMain button[kind^="primary"], [data-testid="stMultiSelect"] :has(> button[aria-label^="Remove"])
  {{background-color:{STRONG} !important;border-color:{STRONG};color:white}}
[data-testid="stVegaLiteChart"] svg text {{fill:currentColor;fill-opacity:.8}}
ul.hr-alerts {{display:grid;gap:.5rem;list-style:none;margin:.2rem 0 !important;
  padding:0 !important}}
ul.hr-alerts li {{border-left:3px solid {ORANGE};margin:0 !important;
  padding:0 0 0 .7rem !important}}
.hr-alerts a {{color:inherit;font-weight:600}}
.hr-alerts a.hr-more {{font-weight:400;font-size:.9rem}}
.hr-alerts li.past {{border-color:{GREY}}}
ul.hr-links {{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;list-style:none;margin:0 !important;
  padding:0 !important}}
.hr-link {{color:inherit !important;font-weight:600}}
.hr-links li {{margin:0 !important}}
.hr-stack {{font-size:.8rem;white-space:pre;overflow-x:auto;max-height:22rem}}
.hr-prompt {{font-family:"Source Code Pro",ui-monospace,monospace;font-size:.95rem;
  white-space:pre-wrap;overflow-wrap:anywhere;opacity:.85;border-left:3px solid {GREY};
  padding:.1rem .8rem;margin-bottom:.6rem}}
.hr-empty {{border:1px dashed rgba(125,139,151,.55);border-radius:.6rem;padding:1.1rem 1.2rem;
  opacity:.85;font-size:.95rem}}
[data-stale="true"], [data-testid^="stExpander"] {{opacity:1 !important;filter:none !important;
  transition:none !important}}
[data-testid="stStatusWidget"]:has([data-testid^="stStatusWidgetRunning"]) {{visibility:hidden}}
a:focus-visible, button:focus-visible, summary:focus-visible, [role="tab"]:focus-visible
  {{outline:2px solid {BLUE} !important;outline-offset:2px}}
.st-key-fold, .hr-jumps, .hr-phone {{display:none}}
.hr-phone {{list-style:none;margin:0 !important;padding:0 !important}}
.hr-phone li, .hr-jumps nav {{display:flex;flex-wrap:wrap;gap:.2rem .9rem;
  margin:0 0 .6rem !important}}
.hr-phone a, .hr-jumps a {{color:inherit}}
.hr-phone a {{flex-basis:100%}}
@media (max-width:640px) {{
  .st-key-fold, .hr-phone, .hr-jumps {{display:block}}
  .stMain:has(.st-key-fold):not(:has(.st-key-fold input:checked)) .st-key-filters {{display:none}}
  .hr-line h1 {{font-size:1.35rem}}
  .hr-note {{float:none;display:block}}
  .hr-sum .op {{display:none}}
  .stMain .stMainBlockContainer {{padding:4.2rem .9rem 3rem}}
}}
.stMainBlockContainer {{padding:3.4rem 2.6rem 4rem;max-width:2200px}}
</style>"""

ANSWER_STYLE = f"""<style>
.hr-scale {{display:flex;align-items:center;gap:.6em;font-size:.84rem;margin-bottom:.4rem;
  font-variant-numeric:tabular-nums}}
.hr-scale i {{width:9rem;height:.7rem;border-radius:4px;border:1px solid rgba(125,139,151,.35)}}
.hr-role {{font-weight:650;font-size:.9rem;opacity:.8;border-top:1px solid {FAINT};
  padding-top:.35rem}}
.hr-said p {{white-space:pre-wrap;overflow-wrap:anywhere;margin:0}}
.hr-said details {{border-left:3px solid {GREY};padding-left:.8rem}}
.hr-said summary {{cursor:pointer;opacity:.8}}
.hr-code {{display:flex;flex-wrap:wrap;gap:.6rem 1.4rem;align-items:flex-start}}
.hr-code pre {{flex:1 1 24rem;min-width:0;margin:0;padding:.7rem .9rem;overflow-x:auto;
  border-radius:.5rem;background:rgba(125,139,151,.13);white-space:pre;
  font-family:"Source Code Pro",ui-monospace,monospace;font-size:.9rem}}
.hr-code dl {{display:grid;grid-template-columns:auto auto;gap:.1rem .9rem;margin:0}}
.hr-code dd {{margin:0;font-weight:600;text-align:right}}
.hr-images {{display:flex;flex-wrap:wrap;gap:.8rem 1.2rem;margin-bottom:.6rem}}
.hr-images figure {{margin:0;max-width:100%}}
.hr-image {{position:relative;max-width:100%}}
.hr-image img {{display:block;width:100%;image-rendering:pixelated;outline:1px solid {FAINT}}}
.hr-image i {{position:absolute;box-sizing:border-box}}
.hr-images i.given {{border:3px solid {ORANGE};outline:1px solid #fff}}
.hr-images i.wanted {{outline:3px dashed {BLUE};box-shadow:0 0 0 3px #fff}}
.hr-image i.given[style*="width:0;"] {{border-width:6px;border-radius:50%;margin:-6px}}
.hr-images figcaption {{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;font-size:.84rem;
  padding:.5rem 0 0 3px;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}
.hr-images figcaption i {{display:inline-block;width:.9em;height:.7em;margin-right:.6em}}
</style>"""
"""What a page shows of one answer, beside `STYLE`."""
