"""Adapters for frameworks. Each module imports its framework, so that none of them is imported here.

    belljar.integrations.openai          OpenAI's function tools (no package needed)
    belljar.integrations.anthropic       Anthropic's tools (no package needed)
    belljar.integrations.langchain       a LangChain tool
    belljar.integrations.deepagents      a sandbox backend for deepagents
    belljar.integrations.llama_index     a LlamaIndex tool, tool spec and code_execute_fn
    belljar.integrations.autogen         a CodeExecutor for AutoGen
    belljar.integrations.smolagents      a Python executor for smolagents
    belljar.integrations.pydantic_ai     a Pydantic AI tool and toolset
    belljar.integrations.openai_agents   a function tool for the OpenAI Agents SDK
    belljar.integrations.crewai          a CrewAI tool
"""
