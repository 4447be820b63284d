import assert from 'node:assert/strict'
import test from 'node:test'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { base, keys, leaves } from './site.js'

const compatible = createOpenAICompatible({ name: 'sluice', baseURL: base, apiKey: keys.main, includeUsage: true, supportsStructuredOutputs: true })
const openai = createOpenAI({ baseURL: base, apiKey: keys.main })
const models = { compatible: compatible('chat'), openai: openai.chat('chat') }
const asked = []
const tools = {
  get_weather: tool({ inputSchema: z.object({ city: z.string() }), execute: ({ city }) => { asked.push(city); return `warm in ${city}` } }),
}

for (const [name, model] of Object.entries(models)) {
  test(`${name}: generateText`, async () => {
    const { text, usage, finishReason } = await generateText({ model, prompt: 'hello', maxOutputTokens: 8 })
    assert.equal(text.split(' ').length, 8)
    assert.equal(usage.outputTokens, 8)
    assert.equal(finishReason, 'length')
  })

  test(`${name}: streamText`, async () => {
    const result = streamText({ model, prompt: 'hello', maxOutputTokens: 8 })
    let text = ''
    for await (const part of result.textStream) text += part
    assert.equal(text.split(' ').length, 8)
    assert.equal((await result.usage).outputTokens, 8)
  })

  test(`${name}: tools are run, plain and streamed`, async () => {
    asked.length = 0
    const plain = await generateText({ model, tools, stopWhen: stepCountIs(3), prompt: 'call:get_weather' })
    assert.equal(plain.steps.length, 2)
    assert.match(plain.text, /./)
    const streamed = streamText({ model, tools, stopWhen: stepCountIs(3), prompt: 'call:get_weather' })
    await streamed.consumeStream()
    assert.equal((await streamed.steps).length, 2)
    assert.equal(await streamed.text, plain.text)
    assert.equal(asked.length, 2)
    assert.equal(asked[0], asked[1])
  })

  test(`${name}: an object of a schema`, async () => {
    const { object } = await generateObject({ model, schema: z.object({ name: z.string(), tags: z.array(z.string()) }), prompt: 'a thing' })
    assert.equal(object.tags.length, 1)
  })

  test(`${name}: errors`, async () => {
    await assert.rejects(generateText({ model, prompt: 'fault:refuse-500', maxRetries: 0 }),
      (e) => APICallError.isInstance(e) && e.statusCode === 500 && e.isRetryable)
    const errors = []
    const result = streamText({ model, prompt: 'fault:error-object', onError: ({ error }) => errors.push(error) })
    await result.consumeStream()
    assert.equal(errors.length, 1)
  })

  test(`${name}: the engine sees a client that leaves`, () => leaves(async () => {
    const stop = new AbortController()
    const result = streamText({ model, prompt: 'a long story', maxOutputTokens: 8000, abortSignal: stop.signal })
    let n = 0
    for await (const _ of result.textStream) if (++n === 3) stop.abort()
    assert(n < 8000)
  }))
}

test('embedMany', async () => {
  const { embeddings } = await embedMany({ model: compatible.textEmbeddingModel('chat'), values: ['one', 'two'] })
  assert.deepEqual(embeddings.map((e) => e.length), [256, 256])
})
