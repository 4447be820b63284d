import assert from 'node:assert/strict'
import test from 'node:test'
import Anthropic from '@anthropic-ai/sdk'
import { counting, keys, leaves, once, url, user } from './site.js'

const client = (options = {}) => new Anthropic({ baseURL: url, apiKey: keys.main, maxRetries: 0, ...options })
const ai = client()
const weather = { name: 'get_weather', description: 'of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }
const time = { ...weather, name: 'get_time' }

// chat is an engine that speaks the OpenAI API alone, native one that speaks this API.
for (const model of ['chat', 'native']) {
  const ask = (content, more = {}) => ({ model, max_tokens: 300, messages: user(content), ...more })

  test(`${model}: plain`, async () => {
    const { data, response } = await ai.messages.create(ask('hello', { system: 'be brief', max_tokens: 8 })).withResponse()
    assert.equal(data.type, 'message')
    assert.equal(data.content[0].text.split(' ').length, 8)
    assert.equal(data.stop_reason, 'max_tokens')
    assert.equal(data.usage.output_tokens, 8)
    assert.equal(data.usage.input_tokens, 4)
    assert.match(response.headers.get('x-request-id') ?? response.headers.get('request-id'), /./)
  })

  test(`${model}: a stream says what a plain message says`, async () => {
    const q = ask('the same', { max_tokens: 8, messages: [{ role: 'user', content: [{ type: 'text', text: 'the same' }] }] })
    const whole = await ai.messages.create(q)
    const kinds = []
    for await (const event of await ai.messages.create({ ...q, stream: true })) kinds.push(event.type)
    assert.equal(kinds[0], 'message_start')
    assert.equal(kinds.at(-1), 'message_stop')
    const streamed = await ai.messages.stream(q).finalMessage()
    assert.equal(streamed.content[0].text, whole.content[0].text)
    assert.equal(streamed.stop_reason, whole.stop_reason)
    assert.equal(streamed.usage.output_tokens, 8)
  })

  test(`${model}: parallel tools, plain, streamed, and their results`, async () => {
    const q = ask('call:get_weather call:get_time', { tools: [weather, time] })
    const whole = await ai.messages.create(q)
    assert.equal(whole.stop_reason, 'tool_use')
    assert.deepEqual(whole.content.map((b) => b.name), ['get_weather', 'get_time'])
    for (const b of whole.content) assert.match(b.input.city, /./)
    const streamed = await ai.messages.stream(q).finalMessage()
    assert.deepEqual(streamed.content.map((b) => [b.type, b.name, b.input]), whole.content.map((b) => [b.type, b.name, b.input]))
    const results = whole.content.map((b) => ({ type: 'tool_result', tool_use_id: b.id, content: 'warm' }))
    const after = await ai.messages.create({ ...q, messages: [...q.messages, { role: 'assistant', content: whole.content }, { role: 'user', content: results }] })
    assert.equal(after.content[0].type, 'text')
    const forced = await ai.messages.create(ask('hello', { tools: [weather, time], tool_choice: { type: 'tool', name: 'get_time' } }))
    assert.equal(forced.content[0].name, 'get_time')
  })

  test(`${model}: count_tokens`, async () => {
    const { input_tokens: few } = await ai.messages.countTokens({ model, messages: user('hello') })
    const { input_tokens: many } = await ai.messages.countTokens({ model, messages: user('hello '.repeat(1000)) })
    assert(few >= 1 && many > 500 && many < 5000, `${few}, ${many}`)
  })

  test(`${model}: errors are the SDK's exceptions`, async () => {
    const raises = async (promise, kind, status, type) => {
      const err = await promise.then(() => assert.fail('no error'), (e) => e)
      assert(err instanceof kind, `${err.constructor.name}: ${err.message}`)
      assert.equal(err.status, status)
      assert.equal(err.error.error.type, type)
    }
    await raises(client({ apiKey: 'sk-wrong' }).messages.create(ask('x')), Anthropic.AuthenticationError, 401, 'authentication_error')
    await raises(client({ apiKey: keys.chatOnly }).messages.create(ask('x', { model: 'native' })), Anthropic.PermissionDeniedError, 403, 'permission_error')
    await raises(ai.messages.create(ask('x', { model: 'nobody' })), Anthropic.NotFoundError, 404, 'not_found_error')
    await raises(ai.messages.create(ask('x', { max_tokens: 0 })), Anthropic.BadRequestError, 400, 'invalid_request_error')
    await raises(ai.messages.create(ask('fault:refuse-429')), Anthropic.RateLimitError, 429, 'rate_limit_error')
    await raises(ai.messages.create(ask('fault:refuse-503')), Anthropic.InternalServerError, 503, 'overloaded_error')
    await raises(ai.messages.create(ask('fault:refuse-500')), Anthropic.InternalServerError, 500, 'api_error')
  })

  test(`${model}: an error in mid-stream raises`, async () => {
    for (const kind of ['die', 'error-object']) {
      let n = 0
      await assert.rejects(async () => {
        for await (const event of await ai.messages.create(ask(`fault:${kind}`, { stream: true }))) n += event.type === 'content_block_delta'
      }, (err) => err instanceof Anthropic.APIError, kind)
      assert.equal(n, 3, kind)
    }
  })

  test(`${model}: a retry waits as long as it was told`, async () => {
    const seen = counting()
    const answer = await client({ maxRetries: 2, fetch: seen.fetch }).messages.create(ask(once('refuse-429')))
    assert.equal(answer.content[0].type, 'text')
    assert.equal(seen.tries.length, 2)
    assert(seen.tries[1].at - seen.tries[0].at >= 1000)
  })

  test(`${model}: timeouts`, async () => {
    await assert.rejects(client({ timeout: 300 }).messages.create(ask('fault:stall')), Anthropic.APIConnectionTimeoutError)
  })

  test(`${model}: the engine sees a client that leaves`, () => leaves(async () => {
    const stream = await ai.messages.create(ask('a long story call:long', { stream: true, max_tokens: 8000, tools: [{ name: 'long', input_schema: long }] }))
    let n = 0
    for await (const _ of stream) if (++n === 4) break
    stream.controller.abort()
  }, model))
}

// long is a schema whose arguments take thousands of tokens to say.
const long = { type: 'object', properties: Object.fromEntries(Array.from({ length: 60 }, (_, i) => ['property_' + i + '_' + 'x'.repeat(200), { type: 'string' }])) }

test('the models of an Anthropic client', async () => {
  const names = []
  for await (const m of ai.models.list()) names.push(m.id)
  assert(names.includes('chat'))
})
