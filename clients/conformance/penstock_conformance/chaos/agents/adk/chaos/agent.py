"""The app `chaos`."""

from chaos_script_model import Scripted, effect
from google.adk.agents import LlmAgent

root_agent = LlmAgent(name="chaos", model=Scripted(), instruction="Play.", tools=[effect])
