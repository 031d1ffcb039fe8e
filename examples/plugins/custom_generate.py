"""One reply a prompt, in slime's shape: asked, and asked again in fewer words when it is long.

    openclaw-rl rollout --custom-generate-function-path examples/plugins/custom_generate.py --tasks prompts.txt

`async def generate(prompt, model)` that returns words would do as well.
"""

WORDS = 8


async def generate(args, sample, sampling_params):
    """`args.model` talks to the policy; tokens and log-probabilities are the gateway's affair."""
    sample.response = await args.model.generate(sample.prompt)
    if len(sample.response.split()) > WORDS and args.max_turns > 1:
        sample.response = await args.model.generate("Too long. Keep it short, please.")
    sample.status = "completed"
    return sample
