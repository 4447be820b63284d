package admin

import (
	"maps"
	"slices"
	"strings"

	"sluice/nodes/registry"
)

// Hidden stands for a value that looks like a secret in every answer.
const Hidden = "(hidden)"

// secretWords mark names whose values are not shown.
var secretWords = []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "API_KEY", "PRIVATE", "CREDENTIAL", "ACCESS_KEY"}

// secretName tells whether a variable or flag of that name holds a secret.
// Engines count tokens and name tokenizers all day: those are none.
func secretName(name string) bool {
	name = strings.ReplaceAll(strings.ToUpper(strings.TrimLeft(name, "-")), "-", "_")
	if strings.Contains(name, "TOKENS") || strings.Contains(name, "TOKENIZER") || strings.ContainsAny(name, " \t\n") {
		return false
	}
	return name == "KEY" || strings.HasSuffix(name, "_KEY") ||
		slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(name, w) })
}

// hideEnv returns a copy of env with the values of secret names replaced.
func hideEnv(env map[string]string) map[string]string {
	out := maps.Clone(env)
	for k := range out {
		if secretName(k) {
			out[k] = Hidden
		}
	}
	return out
}

// hideArgs returns a copy of args with --token=x and what follows --token replaced.
func hideArgs(args []string) []string {
	out := slices.Clone(args)
	for i, a := range args {
		name, _, has := strings.Cut(a, "=")
		switch {
		case !secretName(name):
		case has:
			out[i] = name + "=" + Hidden
		case strings.HasPrefix(a, "-") && i+1 < len(args):
			out[i+1] = Hidden
		}
	}
	return out
}

func hideModel(m registry.ModelSpec) registry.ModelSpec {
	m.Env, m.Command = hideEnv(m.Env), hideArgs(m.Command)
	return m
}

func hideJob(j registry.JobSpec) registry.JobSpec {
	j.Env, j.Command = hideEnv(j.Env), hideArgs(j.Command)
	return j
}

func hideAll(models []ModelStatus) []ModelStatus {
	for i := range models {
		models[i].Spec = hideModel(models[i].Spec)
	}
	return models
}

func hideJobs(jobs []JobStatus) []JobStatus {
	for i := range jobs {
		jobs[i].Spec = hideJob(jobs[i].Spec)
	}
	return jobs
}
