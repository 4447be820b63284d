// Where the gateway and its engines are, and what suites ask of them.
import assert from 'node:assert/strict'

export const url = process.env.SLUICE_URL
export const base = url + '/v1'
export const keys = JSON.parse(process.env.SLUICE_KEYS)

const engines = { chat: process.env.SLUICE_ENGINE_URL, native: process.env.SLUICE_NATIVE_URL }

// aborted is how many requests an engine saw abandoned.
export async function aborted(model = 'chat') {
  const text = await (await fetch(engines[model] + '/metrics')).text()
  return Number(/finished_reason="abort"\} (\d+)/.exec(text)[1])
}

// leaves runs f, which abandons a request, and waits until the engine has seen it.
export async function leaves(f, model = 'chat') {
  const before = await aborted(model)
  await f()
  const limit = Date.now() + 20_000
  while (await aborted(model) === before) {
    assert(Date.now() < limit, 'the engine never saw the client leave')
    await new Promise((again) => setTimeout(again, 20))
  }
}

let faults = 0

// once is a message that asks for a fault the first time it is sent.
export const once = (kind) => `fault:${kind}/${process.pid}-${++faults}`

// user is a conversation of one message.
export const user = (content) => [{ role: 'user', content }]

// counting is a fetch that notes when it was called and what came.
export function counting() {
  const tries = []
  const f = async (...args) => {
    const at = Date.now()
    const answer = await fetch(...args)
    tries.push({ at, status: answer.status, retryAfter: answer.headers.get('retry-after') })
    return answer
  }
  return { fetch: f, tries }
}
