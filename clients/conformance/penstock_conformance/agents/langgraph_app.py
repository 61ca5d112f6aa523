"""A scripted graph behind LangGraph's AG-UI adapter: `uvicorn langgraph_app:app`, /agui."""

from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
from fastapi import FastAPI
from graphs.graph import builder
from langgraph.checkpoint.memory import MemorySaver

agent = LangGraphAgent(
    name="scripted",
    graph=builder.compile(checkpointer=MemorySaver()),
    emit_raw_events=False,
    # What the adapter sends by default is from before AG-UI had interrupts.
    emit_interrupt_outcome=True,
    enable_legacy_on_interrupt_event=False,
)
app = FastAPI()
add_langgraph_fastapi_endpoint(app, agent, "/agui")
