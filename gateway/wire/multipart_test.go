package wire

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
)

const formType = `multipart/form-data; boundary="a b'c"`

// partOf is one part of a form with that boundary.
func partOf(head, value string) string { return "--a b'c\r\n" + head + "\r\n\r\n" + value + "\r\n" }

const formEnd = "--a b'c--\r\n"

var (
	fileField  = partOf(`Content-Disposition: form-data; name="file"; filename="ré sumé.wav"`+"\r\nContent-Type: audio/wav", "RIFF\r\n--a b'\r\n\x00 --a b'c inside a line\r\n")
	modelField = partOf(`content-disposition: form-data; name=model`, "whisper")
)

func TestScanForm(t *testing.T) {
	for name, c := range map[string]struct {
		body, model string
		stream      bool
	}{
		"model last":      {fileField + modelField + formEnd, "whisper", false},
		"model first":     {modelField + fileField + formEnd, "whisper", false},
		"no end line":     {modelField + "--a b'c--", "whisper", false},
		"preamble":        {"This is a form. --a b'c\r\n" + modelField + formEnd + "the end --a b'c\r\n--a b'c", "whisper", false},
		"padding":         {strings.Replace(modelField+formEnd, "c\r\n", "c \t\r\n", 1), "whisper", false},
		"stream":          {modelField + partOf(`Content-Disposition: form-data; name="stream"`, "True") + formEnd, "whisper", true},
		"not streamed":    {modelField + partOf(`Content-Disposition: form-data; name="stream"`, "false") + formEnd, "whisper", false},
		"quoted filename": {modelField + partOf(`Content-Disposition: form-data; filename="a\"; name=\"model"; name="x"`, "y") + formEnd, "whisper", false},
		"empty value":     {modelField + partOf(`Content-Disposition: form-data; name="language"`, "") + formEnd, "whisper", false},
		"other case":      {modelField + partOf(`Content-Disposition: form-data; name="Model"`, "x") + formEnd, "whisper", false},
		"no model":        {fileField + formEnd, "", false},
	} {
		var h Head
		if err := h.ScanForm([]byte(formType), []byte(c.body)); err != nil || string(h.Model) != c.model || h.Stream != c.stream {
			t.Errorf("%s: %v, model %q, stream %v", name, err, h.Model, h.Stream)
		}
	}
}

func TestFormEditChangesTheModelAlone(t *testing.T) {
	body := []byte(fileField + modelField + formEnd)
	var h Head
	if err := h.ScanForm([]byte(formType), body); err != nil {
		t.Fatal(err)
	}
	parts, scratch := h.AppendEdits(nil, nil, body, Edits{Model: "open/whisper-v3", IncludeUsage: true})
	want := fileField + strings.Replace(modelField, "whisper", "open/whisper-v3", 1) + formEnd
	if got := string(bytes.Join(parts, nil)); got != want {
		t.Errorf("%q", got)
	}
	if &parts[0][0] != &body[0] || len(scratch) != len("open/whisper-v3") {
		t.Error("the body was copied")
	}
}

func TestScanFormRefuses(t *testing.T) {
	for name, c := range map[string]struct{ kind, body, param string }{
		"json":                {"application/json", modelField + formEnd, ""},
		"mixed":               {`multipart/mixed; boundary=x`, "", ""},
		"no boundary":         {`multipart/form-data`, modelField + formEnd, ""},
		"empty boundary":      {`multipart/form-data; boundary=""`, modelField + formEnd, ""},
		"two boundaries":      {formType + "; boundary=x", modelField + formEnd, ""},
		"long boundary":       {`multipart/form-data; boundary=` + strings.Repeat("x", 71), "", ""},
		"space at the end":    {`multipart/form-data; boundary="x "`, "", ""},
		"odd character":       {`multipart/form-data; boundary="x<"`, "", ""},
		"open quote":          {`multipart/form-data; boundary="x`, "", ""},
		"escaped close":       {`multipart/form-data; boundary="x\"`, "", ""},
		"empty":               {formType, "", ""},
		"no parts":            {formType, formEnd, ""},
		"no close":            {formType, modelField, ""},
		"other boundary":      {`multipart/form-data; boundary=zz`, modelField + formEnd, ""},
		"boundary goes on":    {formType, modelField + "--a b'cX\r\n" + formEnd, ""},
		"bare LF":             {formType, strings.ReplaceAll(modelField+formEnd, "\r\n", "\n"), ""},
		"LF before boundary":  {formType, strings.Replace(modelField+fileField+formEnd, "whisper\r\n", "whisper\n", 1), ""},
		"CR before boundary":  {formType, strings.Replace(modelField+fileField+formEnd, "whisper\r\n", "whisper\r", 1), ""},
		"model twice":         {formType, modelField + modelField + formEnd, "model"},
		"model is a file":     {formType, partOf(`Content-Disposition: form-data; name="model"; filename="m"`, "x") + formEnd, "model"},
		"model encoded":       {formType, partOf("Content-Disposition: form-data; name=model\r\nContent-Transfer-Encoding: base64", "eA==") + formEnd, "model"},
		"model with line":     {formType, partOf("Content-Disposition: form-data; name=model", "a\nb") + formEnd, "model"},
		"model too long":      {formType, partOf("Content-Disposition: form-data; name=model", strings.Repeat("x", MaxModelBytes+1)) + formEnd, "model"},
		"name escaped":        {formType, partOf(`Content-Disposition: form-data; name="mo\del"`, "x") + formEnd, ""},
		"name percent":        {formType, partOf(`Content-Disposition: form-data; name="mode%6c"`, "x") + formEnd, ""},
		"name extended":       {formType, partOf(`Content-Disposition: form-data; name="a"; name*=utf-8''model`, "x") + formEnd, ""},
		"two names":           {formType, partOf(`Content-Disposition: form-data; name="a"; name="model"`, "x") + formEnd, ""},
		"two dispositions":    {formType, partOf("Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model", "x") + formEnd, ""},
		"folded":              {formType, partOf("Content-Disposition: form-data;\r\n name=model", "x") + formEnd, ""},
		"attachment":          {formType, partOf("Content-Disposition: attachment; name=model", "x") + formEnd, ""},
		"no disposition":      {formType, partOf("Content-Type: text/plain", "x") + formEnd, ""},
		"too many parts":      {formType, strings.Repeat(fileField, MaxFormParts) + modelField + formEnd, ""},
		"endless part header": {formType, partOf("Content-Disposition: form-data; name=a\r\nX: "+strings.Repeat("x", MaxPartHeadBytes), "x") + formEnd, ""},
	} {
		var h Head
		var be *BodyError
		if err := h.ScanForm([]byte(c.kind), []byte(c.body)); !errors.As(err, &be) || be.Param != c.param {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScanFormAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	var h Head
	kind, body := []byte(formType), []byte(fileField+modelField+formEnd)
	if n := testing.AllocsPerRun(100, func() {
		if h.ScanForm(kind, body) != nil {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzForm holds that what is accepted reads the same to another parser: the same model, and only one.
func FuzzForm(f *testing.F) {
	f.Add(formType, []byte(fileField+modelField+formEnd))
	f.Add(`multipart/form-data; boundary=x; charset=utf-8`, []byte("--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--x--"))
	f.Add(`multipart/form-data;boundary="x"`, []byte("p\r\n--x \r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\r\n--x--\r\ne"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		var h Head
		if h.ScanForm([]byte(kind), body) != nil || len(h.Model) == 0 {
			return
		}
		_, params, err := mime.ParseMediaType(kind)
		if err != nil {
			return // stricter than we are about parameters that are not ours
		}
		r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		models := []string{}
		for {
			p, err := r.NextRawPart()
			if err != nil {
				break // stricter about other headers
			}
			value, err := io.ReadAll(p)
			if p.FormName() == "model" && err == nil {
				models = append(models, string(value))
			}
		}
		if len(models) > 1 || len(models) == 1 && models[0] != string(h.Model) {
			t.Errorf("model %q here, %q there", h.Model, models)
		}
		parts, _ := h.AppendEdits(nil, nil, body, Edits{Model: "other"})
		var again Head
		if err := again.ScanForm([]byte(kind), bytes.Join(parts, nil)); err != nil || string(again.Model) != "other" {
			t.Errorf("after the edit: %v, %q", err, again.Model)
		}
	})
}
