"""For verifiers' classic environments."""

from typing import Any

import verifiers as vf
from datasets import Dataset

ROWS = Dataset.from_list([{"question": "q", "answer": "42"}])


async def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: the first
        b: the second
    """
    return a * b


def exact(completion: Any, answer: str) -> float:
    return float(str(completion[-1].content).strip() == answer)


def words(completion: Any) -> float:
    return float(len(completion))


def load_tools() -> vf.Environment:
    rubric = vf.Rubric(funcs=[exact, words], weights=[1.0, 0.01])
    return vf.ToolEnv(dataset=ROWS, tools=[multiply], rubric=rubric, max_turns=4)


class Cart(vf.StatefulToolEnv):
    """A cart that the policy does not see."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_tool(self.put, args_to_skip=["cart"])

    async def setup_state(self, state: vf.State) -> vf.State:
        state["cart"] = []
        return state

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Any,
        state: vf.State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        return {**tool_args, "cart": state["cart"]}

    async def put(self, item: str, cart: list[Any]) -> str:
        """Put something into the cart.

        Args:
            item: what
            cart: where
        """
        cart.append(item)
        return ", ".join(cart)


def load_cart() -> vf.Environment:
    def filled(state: vf.State) -> float:
        return len(set(state["cart"])) / 4

    return Cart(dataset=ROWS, rubric=vf.Rubric(funcs=[filled]), max_turns=5)


class Higher(vf.MultiTurnEnv):
    """A number that is higher or lower."""

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        said = str(messages[-1].content)
        if said == "raise":
            raise vf.Error("it broke")
        state["near"] = said.isdigit() and abs(int(said) - 42) < 5
        return [
            {"role": "user", "content": "lower" if said.isdigit() and int(said) > 42 else "higher"}
        ]

    @vf.stop  # type: ignore[untyped-decorator]
    async def found(self, state: vf.State) -> bool:
        return (
            bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == "42"
        )

    async def get_prompt_messages(self, state: vf.State) -> Any:
        found = await super().get_prompt_messages(state)
        is_rewritten = len(found) > 2 and found[-2].content == "rewrite"
        return found[1:] if is_rewritten else found


def load_higher() -> vf.Environment:
    def near(state: vf.State) -> float:
        return 0.5 * state.get("near", False)

    rubric = vf.Rubric(funcs=[exact, near])
    return Higher(dataset=ROWS, rubric=rubric, max_turns=4, system_prompt="Guess.")
