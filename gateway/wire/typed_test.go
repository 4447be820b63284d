package wire

import "testing"

func TestTypedEvents(t *testing.T) {
	for data, want := range map[string]Event{
		`{"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}`:                                                             {Typed: true, ID: []byte("resp_1")},
		`{"type":"response.output_item.added","item":{"id":"msg_1"}}`:                                                                                            {Typed: true},
		`{"delta":"hi","type":"response.output_text.delta","item_id":"msg_1"}`:                                                                                   {Typed: true, Content: true},
		`{"type":"response.function_call_arguments.delta","delta":"{"}`:                                                                                          {Typed: true, Content: true},
		`{"response":{"usage":{"input_tokens":9,"output_tokens":4}},"type":"response.completed"}`:                                                                {Typed: true, Finish: true, Done: true, Usage: Usage{9, 4, true}},
		`{"type":"response.incomplete","response":{"id":"r","usage":{"input_tokens":1}}}`:                                                                        {Typed: true, Finish: true, Done: true, ID: []byte("r"), Usage: Usage{1, 0, true}},
		`{"type":"response.failed","response":{"error":{"code":"x"}}}`:                                                                                           {Typed: true, Error: true, Done: true},
		`{"type":"transcript.text.delta","delta":"he"}`:                                                                                                          {Typed: true, Content: true},
		`{"type":"transcript.text.done","text":"he","usage":{"input_tokens":14,"output_tokens":45}}`:                                                             {Typed: true, Finish: true, Done: true, Usage: Usage{14, 45, true}},
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}`:                                                                                {Typed: true, Content: true},
		`{"type":"content_block_start","content_block":{"type":"text","text":""}}`:                                                                               {Typed: true},
		`{"type":"message_start","message":{"id":"m","usage":{"input_tokens":2,"cache_read_input_tokens":5,"cache_creation_input_tokens":1,"output_tokens":1}}}`: {Typed: true, Usage: Usage{8, 1, true}},
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}`:                                                                {Typed: true, Usage: Usage{0, 7, true}},
		`{"type":"message_stop"}`: {Typed: true, Finish: true, Done: true},
		`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`: {Error: true},
		`{"type":5,"response":7}`: {},
		`{"object":"transcription.chunk","choices":[{"delta":{"content":"he"}}]}`:              {Content: true},
		`{"id":"x","results":[{"index":0,"relevance_score":0.5}],"usage":{"total_tokens":56}}`: {Usage: Usage{56, 0, true}},
		`{"usage":{"total_tokens":56,"prompt_tokens":50,"completion_tokens":6}}`:               {Usage: Usage{50, 6, true}},
	} {
		got := ReadEvent(nil, []byte(data))
		if got.Typed != want.Typed || got.Content != want.Content || got.Finish != want.Finish || got.Done != want.Done ||
			got.Error != want.Error || got.Usage != want.Usage || string(got.ID) != string(want.ID) || got.Malformed {
			t.Errorf("%s: %+v", data, got)
		}
	}
}

func TestTypedStream(t *testing.T) {
	src := []byte("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\n" +
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n")
	for cut := range len(src) {
		var s Stream
		buf := append([]byte(nil), src[:cut]...)
		send, keep := s.Feed(buf, 0, false)
		out := append([]byte(nil), buf[:send]...)
		buf = append(append([]byte(nil), buf[send:send+keep]...), src[cut:]...)
		send, _ = s.Feed(buf, keep, false)
		out = append(out, buf[:send]...)
		if string(out) != string(src) || !s.Typed || !s.Done || s.Error || string(s.ID) != "resp_1" || s.Content != 1 || s.Usage != (Usage{3, 1, true}) {
			t.Fatalf("cut at %d: %+v", cut, s)
		}
	}
}
