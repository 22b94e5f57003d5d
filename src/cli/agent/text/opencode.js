// Written by `ckptfs agent install opencode`; `ckptfs agent uninstall opencode` removes it.
// Tells ckptfs of prompts and tools, so that `ckptfs rewind` can take back what a session did.
import { spawn } from "node:child_process"

const COMMAND = "@COMMAND@"
const LIMIT_MS = 10000

// Runs the hook; what it says, or "" where anything is wrong: opencode goes on in any case.
function tell(event) {
  return new Promise((resolve) => {
    let said = ""
    try {
      const child = spawn("sh", ["-c", COMMAND], { stdio: ["pipe", "pipe", "ignore"], timeout: LIMIT_MS })
      child.on("error", () => resolve(""))
      child.on("close", () => resolve(said))
      child.stdin.on("error", () => {})
      child.stdout.on("data", (part) => (said += part))
      child.stdin.end(JSON.stringify(event))
    } catch {
      resolve("")
    }
  })
}

export const Ckptfs = async ({ directory }) => {
  const base = (name, session) => ({ hook_event_name: name, session_id: session, cwd: directory })
  return {
    "chat.message": async (input, output) => {
      const text = output.parts.find((part) => part.type === "text")?.text ?? ""
      await tell({ ...base("UserPromptSubmit", input.sessionID), prompt_id: input.messageID ?? output.message?.id, prompt: text })
    },
    "tool.execute.before": async (input, output) => {
      if (!["bash", "edit", "write", "patch", "apply_patch", "multiedit"].includes(input.tool)) return
      await tell({ ...base("PreToolUse", input.sessionID), tool_name: input.tool, tool_use_id: input.callID, tool_input: output.args })
    },
    "tool.execute.after": async (input, output) => {
      if (input.tool !== "bash") return
      const said = await tell({ ...base("PostToolUse", input.sessionID), tool_name: input.tool, tool_use_id: input.callID })
      try {
        output.output += "\n" + JSON.parse(said).hookSpecificOutput.additionalContext
      } catch {}
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") await tell(base("Stop", event.properties.sessionID))
    },
  }
}
