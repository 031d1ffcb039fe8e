"""Generate function with slime's signature: one reply per prompt, and a request for a shorter one if it is long.

    openclaw-rl rollout --custom-generate-function-path examples/plugins/custom_generate.py --tasks prompts.txt

`async def generate(prompt, model)` that returns a string works too.
"""

WORDS = 8


async def generate(args, sample, sampling_params):
    """Fill in `sample.response`. `args.model` is the policy; the gateway stores tokens and log-probabilities."""
    sample.response = await args.model.generate(sample.prompt)
    if len(sample.response.split()) > WORDS and args.max_turns > 1:
        sample.response = await args.model.generate("Too long. Keep it short, please.")
    sample.status = "completed"
    return sample
