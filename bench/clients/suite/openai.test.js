import assert from 'node:assert/strict'
import test from 'node:test'
import OpenAI from 'openai'
import { base, counting, keys, leaves, once, user } from './site.js'

const client = (options = {}) => new OpenAI({ baseURL: base, apiKey: keys.main, maxRetries: 0, ...options })
const ai = client()
const ask = (content, more = {}) => ({ model: 'chat', messages: user(content), max_tokens: 8, ...more })

test('a plain chat', async () => {
  const { data, response } = await ai.chat.completions.create(ask('hello')).withResponse()
  assert.equal(data.object, 'chat.completion')
  assert.equal(data.choices[0].message.content.split(' ').length, 8)
  assert.equal(data.choices[0].finish_reason, 'length')
  assert.deepEqual([data.usage.prompt_tokens, data.usage.completion_tokens, data.usage.total_tokens], [2, 8, 10])
  assert.match(response.headers.get('x-request-id'), /./)
  assert.equal(data._request_id, response.headers.get('x-request-id'))
})

test('a stream says what a plain chat says', async () => {
  const whole = await ai.chat.completions.create(ask('the same'))
  let text = ''
  let chunks = 0
  for await (const chunk of await ai.chat.completions.create(ask('the same', { stream: true }))) {
    text += chunk.choices[0].delta.content ?? ''
    assert.equal(chunk.usage ?? null, null) // nobody asked
    chunks++
  }
  assert.equal(text, whole.choices[0].message.content)
  assert.equal(chunks, 9)
})

test('usage in a stream', async () => {
  let usage = null
  for await (const chunk of await ai.chat.completions.create(ask('hello', { stream: true, stream_options: { include_usage: true } }))) {
    if (chunk.usage) {
      assert.deepEqual(chunk.choices, [])
      usage = chunk.usage
    }
  }
  assert.equal(usage.completion_tokens, 8)
})

test('n, logprobs and a JSON schema', async () => {
  const many = await ai.chat.completions.create(ask('hello', { n: 3, logprobs: true, top_logprobs: 2 }))
  assert.deepEqual(many.choices.map((c) => c.index), [0, 1, 2])
  assert.equal(new Set(many.choices.map((c) => c.message.content)).size, 3)
  assert.equal(many.choices[2].logprobs.content.length, 8)
  assert.equal(many.usage.completion_tokens, 24)
  const texts = ['', '', '']
  for await (const chunk of await ai.chat.completions.create(ask('hello', { n: 3, stream: true }))) {
    for (const c of chunk.choices) texts[c.index] += c.delta.content ?? ''
  }
  assert.deepEqual(texts, many.choices.map((c) => c.message.content))
  const schema = { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } }, required: ['name', 'age'], additionalProperties: false }
  const made = await ai.chat.completions.parse(ask('a person', { max_tokens: 100, response_format: { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } } }))
  assert.equal(typeof made.choices[0].message.parsed.age, 'number')
})

const city = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
const tools = [
  { type: 'function', function: { name: 'get_weather', parameters: city } },
  { type: 'function', function: { name: 'get_time', parameters: city } },
]

test('parallel tools, plain, streamed, and their results', async () => {
  const q = { model: 'chat', messages: user('call:get_weather call:get_time'), tools, max_tokens: 200 }
  const whole = await ai.chat.completions.create(q)
  const calls = whole.choices[0].message.tool_calls
  assert.equal(whole.choices[0].finish_reason, 'tool_calls')
  assert.deepEqual(calls.map((c) => c.function.name), ['get_weather', 'get_time'])
  for (const c of calls) assert.match(JSON.parse(c.function.arguments).city, /./)

  const streamed = await ai.chat.completions.stream(q).finalChatCompletion()
  assert.deepEqual(streamed.choices[0].message.tool_calls.map((c) => [c.id, c.function.name, c.function.arguments]),
    calls.map((c) => [c.id, c.function.name, c.function.arguments]))

  const results = calls.map((c) => ({ role: 'tool', tool_call_id: c.id, content: '21 degrees' }))
  const after = await ai.chat.completions.create({ ...q, messages: [...q.messages, whole.choices[0].message, ...results] })
  assert.match(after.choices[0].message.content, /./)
})

test('the SDK runs tools itself', async () => {
  const asked = []
  const runner = ai.chat.completions.runTools({
    model: 'chat',
    messages: user('call:get_weather'),
    tools: [{ type: 'function', function: { name: 'get_weather', parameters: city, parse: JSON.parse, function: (a) => { asked.push(a.city); return 'warm' } } }],
  })
  assert.match(await runner.finalContent(), /./)
  assert.equal(asked.length, 1)
})

test('text completions', async () => {
  const whole = await ai.completions.create({ model: 'chat', prompt: 'once upon', max_tokens: 4 })
  let text = ''
  for await (const chunk of await ai.completions.create({ model: 'chat', prompt: 'once upon', max_tokens: 4, stream: true })) text += chunk.choices[0].text
  assert.equal(text, whole.choices[0].text)
})

test('errors are the SDK\'s exceptions', async () => {
  const raises = async (promise, kind, fields) => {
    const err = await promise.then(() => assert.fail('no error'), (e) => e)
    assert(err instanceof kind, `${err.constructor.name}: ${err.message}`)
    for (const [name, value] of Object.entries(fields)) assert.equal(err[name], value, name)
    assert.match(err.requestID, /./)
  }
  await raises(client({ apiKey: 'sk-wrong' }).chat.completions.create(ask('x')), OpenAI.AuthenticationError, { status: 401, code: 'invalid_api_key' })
  await raises(client({ apiKey: keys.chatOnly }).chat.completions.create(ask('x', { model: 'native' })), OpenAI.PermissionDeniedError, { status: 403, code: 'model_not_allowed' })
  await raises(ai.chat.completions.create(ask('x', { model: 'nobody' })), OpenAI.NotFoundError, { status: 404, code: 'model_not_found', param: 'model' })
  await raises(ai.chat.completions.create(ask('x', { max_tokens: 0 })), OpenAI.BadRequestError, { status: 400, param: 'max_tokens' })
  await raises(ai.chat.completions.create({ messages: user('x') }), OpenAI.BadRequestError, { status: 400, param: 'model' })
  await raises(ai.chat.completions.create(ask('fault:refuse-429')), OpenAI.RateLimitError, { status: 429 })
  await raises(ai.chat.completions.create(ask('fault:refuse-503')), OpenAI.InternalServerError, { status: 503 })
  await raises(ai.chat.completions.create(ask('fault:refuse-429', { stream: true })), OpenAI.RateLimitError, { status: 429 })
})

test('GW-10: an error in mid-stream raises, whatever its shape', async () => {
  for (const kind of ['die', 'error-object', 'error-event', 'error-string', 'error-flat']) {
    let text = ''
    await assert.rejects(async () => {
      for await (const chunk of await ai.chat.completions.create(ask(`fault:${kind}`, { stream: true }))) text += chunk.choices[0].delta.content ?? ''
    }, (err) => err instanceof OpenAI.APIError && (kind === 'die' || err.message.includes('engine died')), kind)
    assert.equal(text.split(' ').length, 3, kind)
  }
})

test('a retry waits as long as it was told', async () => {
  for (const [kind, wait] of [['refuse-429', 1000], ['refuse-503', 1000], ['refuse-500', 0]]) {
    const seen = counting()
    const answer = await client({ maxRetries: 2, fetch: seen.fetch }).chat.completions.create(ask(once(kind)))
    assert.match(answer.choices[0].message.content, /./)
    assert.equal(seen.tries.length, 2, kind)
    if (wait > 0) assert.equal(seen.tries[0].retryAfter, '1', kind)
    assert(seen.tries[1].at - seen.tries[0].at >= wait, kind)
  }
})

test('limits are told and kept', async () => {
  const limited = client({ apiKey: keys.perMinute })
  const { response } = await limited.chat.completions.create(ask('hello')).withResponse()
  assert.equal(response.headers.get('x-ratelimit-limit-requests'), '3')
  assert.equal(response.headers.get('x-ratelimit-remaining-requests'), '2')
  assert.match(response.headers.get('x-ratelimit-reset-requests'), /^([\d.]+(ms|s|m|h))+$/)
  let refused = null
  for (let i = 0; i < 100 && !refused; i++) { // more than three may pass while the machine is slow
    await limited.chat.completions.create(ask('hello')).catch((e) => { refused = e })
  }
  assert(refused instanceof OpenAI.RateLimitError)
  assert.match(refused.headers.get('retry-after'), /^[1-9]\d*$/)
  assert.match(refused.code, /./)
})

test('GW-30: fifty clients at a limit of three try three times at most', async () => {
  const outcomes = await Promise.all(Array.from({ length: 50 }, async () => {
    const seen = counting()
    const limited = client({ apiKey: keys.crowd, maxRetries: 2, fetch: seen.fetch })
    const ok = await limited.chat.completions.create(ask('hello', { max_tokens: 400 })).then(() => true, (e) => {
      assert(e instanceof OpenAI.RateLimitError, e.message)
      return false
    })
    return { ok, tries: seen.tries }
  }))
  assert(outcomes.some((o) => o.ok))
  for (const o of outcomes) {
    assert(o.tries.length <= 3)
    for (let i = 0; i < o.tries.length; i++) {
      const t = o.tries[i]
      if (t.status !== 429) continue
      assert.match(t.retryAfter, /^[1-9]\d*$/)
      if (i + 1 < o.tries.length) assert(o.tries[i + 1].at - t.at >= 1000 * Number(t.retryAfter), 'it came back too early')
    }
  }
})

test('timeouts, of the client and of the gateway', async () => {
  await assert.rejects(client({ timeout: 300 }).chat.completions.create(ask('fault:stall')), OpenAI.APIConnectionTimeoutError)
  await assert.rejects(ai.chat.completions.create(ask('fault:stall'), { headers: { 'x-request-timeout-ms': '2000' } }),
    (err) => err instanceof OpenAI.InternalServerError && err.status === 504)
})

test('the engine sees a client that leaves', async () => {
  await leaves(async () => {
    const stream = await ai.chat.completions.create(ask('a long story', { max_tokens: 8000, stream: true }))
    let n = 0
    for await (const _ of stream) if (++n === 3) break
    stream.controller.abort()
  })
  await leaves(async () => {
    const stop = new AbortController()
    const answer = ai.chat.completions.create(ask('a long story', { max_tokens: 8000 }), { signal: stop.signal })
    setTimeout(() => stop.abort(), 300)
    await assert.rejects(answer, OpenAI.APIUserAbortError)
  })
})

test('GW-24: embeddings, in base64 unless told otherwise', async () => {
  const input = ['one', 'two', 'three']
  const asked = await ai.embeddings.create({ model: 'chat', input, encoding_format: 'float', dimensions: 1024 })
  const usual = await ai.embeddings.create({ model: 'chat', input, dimensions: 1024 })
  assert.deepEqual(usual.data.map((d) => [d.index, d.embedding.length]), [[0, 1024], [1, 1024], [2, 1024]])
  usual.data.forEach((d, i) => d.embedding.forEach((x, k) => assert(Math.abs(x - asked.data[i].embedding[k]) < 1e-6)))
  assert.equal(usual.usage.total_tokens, 4)
})

test('models', async () => {
  const names = []
  for await (const m of ai.models.list()) names.push(m.id)
  assert.deepEqual(names.sort(), ['chat', 'native'])
  assert.equal((await ai.models.retrieve('chat')).id, 'chat')
  await assert.rejects(ai.models.retrieve('nobody'), OpenAI.NotFoundError)
})
